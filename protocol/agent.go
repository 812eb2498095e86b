package protocol

// Profile is an agent's entry in the directory (documents 1 and 2).
type Profile struct {
	ID               string          `json:"id"`
	Name             string          `json:"name,omitempty"`
	Description      string          `json:"description,omitempty"`
	Specialization   string          `json:"specialization,omitempty"`
	Capabilities     []Capability    `json:"capabilities,omitempty"`
	Examples         []string        `json:"examples,omitempty"`
	AcceptsHandoffs  *bool           `json:"accepts_handoffs,omitempty"` // absent is true
	MaxConcurrency   int             `json:"max_concurrency,omitempty"`  // per worker; 0 is the worker's own
	MaxExecutionMS   int64           `json:"max_execution_time_ms,omitempty"`
	MaxRisk          Risk            `json:"max_risk,omitempty"`     // absent is high
	EscalatesTo      string          `json:"escalates_to,omitempty"` // absent is human
	Paused           bool            `json:"paused,omitempty"`       // offers wait, none are claimed
	Policy           PolicyOverrides `json:"policy,omitzero"`        // defaults for what is offered to it
	UpdatedAt        Time            `json:"updated_at,omitzero"`
	RegisteredByWork bool            `json:"registered_by_worker,omitempty"`
}

// Capability is something an agent can do, and how well. A bare string is
// read as an id with proficiency 1.
type Capability struct {
	ID          string  `json:"id"`
	Proficiency float64 `json:"proficiency"` // 0 to 1
}

// Accepts tells whether the agent takes handoffs at all.
func (p Profile) Accepts() bool { return p.AcceptsHandoffs == nil || *p.AcceptsHandoffs }

// Holder is one worker process, or one claim made from the command line, as
// the directory knows it. Its entry expires LeaseMS after the last beat.
type Holder struct {
	ID        string `json:"id"` // a UUID
	Agent     string `json:"agent"`
	LeaseMS   int64  `json:"lease_ms"`
	Slots     int    `json:"slots"`
	Busy      int    `json:"busy"`
	Polling   bool   `json:"polling,omitempty"` // a claim from the command line: serves nothing by itself
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	Draining  bool   `json:"draining,omitempty"`
}
