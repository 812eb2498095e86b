package protocol

// Interim: stands only until redact.go lands. Delete this file then.

var DefaultRedactions = []string{}

type Redactor struct{}

func NewRedactor(patterns []string) (*Redactor, error) { return &Redactor{}, nil }
func (r *Redactor) Redact(body []byte) ([]byte, int)   { return body, 0 }
