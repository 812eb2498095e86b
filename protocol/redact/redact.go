// Package redact takes secrets out of packages, results, events and plain texts.
// A secret is known by its form (kinds.go), by the name of the field or variable that
// holds it (names.go, assign.go), or by an expression of the operator. The package does
// no I/O and reads no clock; what it does for a text is bounded by the text's length.
package redact

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// Marker stands where a secret was.
const Marker = "[redacted]"

const (
	// PatternsMax is how many expressions a Redactor may have besides its own kinds.
	PatternsMax = 256
	// GrowthMax is how many bytes one redaction adds to a body at most: the
	// marker in quotes in the place of one digit.
	GrowthMax = len(Marker) + 2 - 1

	// stepsLeast, and the length of the body, is how many steps one body has in all. A byte
	// that is read as a value is one, a byte that is matched against an expression
	// matchedSteps. A text beyond that is replaced as a whole.
	stepsLeast   = 8 << 20
	matchedSteps = 8
	// roundsMax is how often a body in which secrets are found is looked through: what stood
	// beside a secret may look like one when that is gone.
	roundsMax = 4
	// checkedBytes is how much is read before ended is asked again.
	checkedBytes = 64 << 10
	// addedBytes is how much of a text is matched against an added expression at a time,
	// and overlapBytes how much of it again with what follows: the longest match of an
	// added expression that is found wherever it stands.
	addedBytes   = 64 << 10
	overlapBytes = 4 << 10
)

// Redactor takes secrets out of packages, results and texts. It is safe for use by many
// goroutines. The zero value redacts nothing. What it does for a body grows with the body's
// length alone, whatever the body says, and ends when its caller does.
type Redactor struct {
	kinds *wordTable       // nil in the zero value
	added []pattern        // matched against every text
	names []*regexp.Regexp // matched against the names of fields in free data
}

// pattern is one expression and the group of it that is the secret, 0 for all of it.
type pattern struct {
	expr  *regexp.Regexp
	group int
}

// Default is the redactor without added expressions. It is made at the first call:
// that takes milliseconds, and most processes of a command line write nothing.
var Default = sync.OnceValues(func() (*Redactor, error) { return New(nil) })

// New returns a redactor of the known kinds of secrets and of added regular expressions.
// What an expression matches is replaced, or only its group called secret if it has
// one. An expression behind "key:" is matched against the names of fields in free data
// instead, and the value of a field that it matches is replaced. Every text is read once for
// each expression; one that begins with plain text costs least. The error is a *protocol.Error with
// CodeInvalid that names the expression, or CodeTooLarge beyond PatternsMax.
func New(added []string) (*Redactor, error) {
	if len(added) > PatternsMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "redactions", "lists %d expressions, at most %d are allowed", len(added), PatternsMax)
	}
	kinds, err := knownKinds()
	if err != nil {
		return nil, err
	}
	r := &Redactor{kinds: kinds}
	for i, source := range added {
		source, isName := strings.CutPrefix(source, "key:")
		expr, err := newExpression(source)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("redactions[%d]", i), "%v", err)
		}
		if isName {
			r.names = append(r.names, expr)
			continue
		}
		r.added = append(r.added, pattern{expr, max(expr.SubexpIndex("secret"), 0)})
	}
	return r, nil
}

func newExpression(source string) (*regexp.Regexp, error) {
	expr, err := regexp.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("is no regular expression: %w", err)
	}
	if expr.MatchString("") {
		return nil, errors.New("matches the empty text, and so everywhere")
	}
	return expr, nil
}

// Ended says when a redaction has to end: as soon as Err is not nil. A context is one; the
// wire itself knows no context.
type Ended interface{ Err() error }

// Package replaces the secrets in a package, as EncodePackage wrote it, by
// Marker, and returns how many there were. It reads the words and the free
// data of a package and leaves alone what gives it its structure: ids, names of
// agents, keys, tickets, instants, enumerations, policies and the output schema.
// Apart from the secrets every byte stays as it is; without any, the result is
// body itself. Redacting twice finds nothing the second time.
func (r *Redactor) Package(ended Ended, body []byte) ([]byte, int, error) {
	return r.redact(ended, body, redactPlan)
}

// Result replaces the secrets in a result, as EncodeResult wrote it. The error is
// that of ended.
func (r *Redactor) Result(ended Ended, body []byte) ([]byte, error) {
	redacted, _, err := r.redact(ended, body, resultPlan)
	return redacted, err
}

// Text replaces the secrets in a text that is no JSON. The error is that of ended.
func (r *Redactor) Text(ended Ended, text string) (string, error) {
	if r.kinds == nil {
		return text, nil
	}
	raw := []byte(text)
	for round := range roundsMax {
		found, err := newSearch(ended, r, len(raw)).inText(raw)
		switch {
		case err != nil:
			return text, err
		case len(found) == 0 && round == 0:
			return text, nil
		case len(found) == 0:
			return string(raw), nil
		}
		var out []byte
		copied := 0
		for _, secret := range found {
			out = append(append(out, raw[copied:secret.start]...), Marker...)
			copied = secret.end
		}
		raw = append(out, raw[copied:]...)
	}
	return string(raw), nil
}

// redact replaces the secrets that a plan looks for in JSON.
func (r *Redactor) redact(ended Ended, body []byte, p *plan) ([]byte, int, error) {
	return r.redactValue(ended, body, p, false)
}

// redactValue is redact for a value that is secret as a whole if its name says so.
func (r *Redactor) redactValue(ended Ended, body []byte, p *plan, secret bool) ([]byte, int, error) {
	if r.kinds == nil {
		return body, 0, nil
	}
	given, count := body, 0
	for range roundsMax {
		w := redaction{search: newSearch(ended, r, len(body)), in: body}
		w.value(p, secret, false)
		switch {
		case w.err != nil:
			return given, 0, w.err
		case w.count == 0:
			return body, count, nil
		}
		body, count = append(w.out, body[w.copied:]...), count+w.count
	}
	return body, count, nil
}

// secretField tells whether the name of a field says that its value is a secret.
func (r *Redactor) secretField(name []byte) bool {
	if r.kinds.any(name) && strengthOf(name) != harmless {
		return true
	}
	for _, expr := range r.names {
		if expr.Match(name) {
			return true
		}
	}
	return false
}

// isPlaceholder tells whether a value only stands for a secret: what was
// redacted before, stars, the name of a variable, YOUR_API_KEY.
func isPlaceholder(value []byte) bool {
	if len(value) == 0 || bytes.Contains(value, []byte(Marker)) || len(bytes.Trim(value, "*xX.…")) == 0 {
		return true
	}
	if hasFolded(value, "your_") || hasFolded(value, "your-") { // YOUR_API_KEY
		return true
	}
	switch first, last := value[0], value[len(value)-1]; {
	case first == '$': // not a hash of crypt, which begins with $ and a digit
		return len(value) == 1 || value[1] < '0' || value[1] > '9'
	case first == '<':
		return last == '>'
	}
	return bytes.HasPrefix(value, []byte("{{")) || bytes.HasPrefix(value, []byte("%(")) ||
		strings.HasPrefix(Marker, string(value[:min(len(value), utf8.UTFMax*len(Marker))])) // cut off at a bracket
}
