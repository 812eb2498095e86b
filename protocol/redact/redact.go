// Package redact replaces secrets in packages, results, events and plain texts.
// It finds a secret by its form (kinds.go), by the name of the field or variable that
// holds it (names.go, assign.go), or by an operator's pattern (patterns.go). The package does
// no I/O and reads no clock; its work for a text is bounded by the text's length.
package redact

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// Marker replaces a secret.
const Marker = "[redacted]"

const (
	// patternsMax is how many patterns a Redactor may have besides the built-in kinds.
	patternsMax = 256
	// stepsMin plus the length of a body is its budget of steps. A byte read as a value is one
	// step, a byte matched against an expression is stepsPerMatchedByte. A text beyond the budget
	// is replaced as a whole.
	stepsMin            = 8 << 20
	stepsPerMatchedByte = 8
	// passesMax is how many passes a body gets. Text beside a secret may look like another secret
	// once the first is replaced.
	passesMax = 4
	// cancelCheckBytes is how much is read between two checks of the context.
	cancelCheckBytes = 64 << 10
)

// Redactor replaces secrets in packages, results and texts. It is safe for concurrent use. The
// zero value redacts nothing. Its work grows only with a body's length, whatever the body
// contains, and stops when the caller's context ends.
type Redactor struct {
	keywords     *keywordTable    // of the built-in kinds; nil in the zero value
	patterns     []pattern        // custom, matched against every text
	namePatterns []*regexp.Regexp // custom, matched against names of fields in free data
}

// pattern is one expression and the group of it that is the secret, 0 for all of it.
type pattern struct {
	expr  *regexp.Regexp
	group int
}

// Default returns the redactor without patterns. The first call builds it, which takes
// milliseconds; most processes of the command line write nothing.
var Default = sync.OnceValues(func() (*Redactor, error) { return New(nil) })

// New returns a redactor of the built-in kinds and of an operator's patterns. A pattern is a
// regular expression; its match is replaced, or only the group named secret if it has one. A
// pattern with the prefix "key:" is matched against names of fields in free data, and the value of
// such a field is replaced. Each pattern costs a pass over every text; one that begins with plain
// text costs least. The error is a *protocol.Error with CodeInvalid that names the pattern, or
// CodeTooLarge beyond patternsMax.
func New(patterns []string) (*Redactor, error) {
	if len(patterns) > patternsMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "redactions", "lists %d expressions, at most %d are allowed", len(patterns), patternsMax)
	}
	kinds, err := builtinKeywords()
	if err != nil {
		return nil, err
	}
	r := &Redactor{keywords: kinds}
	for i, source := range patterns {
		source, isName := strings.CutPrefix(source, "key:")
		expr, err := newExpression(source)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("redactions[%d]", i), "%v", err)
		}
		if isName {
			r.namePatterns = append(r.namePatterns, expr)
			continue
		}
		r.patterns = append(r.patterns, pattern{expr, max(expr.SubexpIndex("secret"), 0)})
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

// Canceler stops a redaction once Err is not nil. A context.Context is one; package protocol does
// not import context.
type Canceler interface{ Err() error }

// Package replaces the secrets in an encoded package by Marker, and returns how many there were.
// It reads texts and free data, and keeps the structure: ids, names of agents, keys, tickets,
// instants, enumerations, policies and the output schema. All other bytes stay as they are;
// without secrets, the result is body itself. Redacting the result again finds nothing.
func (r *Redactor) Package(ctx Canceler, body []byte) ([]byte, int, error) {
	return r.redact(ctx, body, packagePlan)
}

// Result replaces the secrets in an encoded result by Marker. The error is that of ctx.
func (r *Redactor) Result(ctx Canceler, body []byte) ([]byte, error) {
	redacted, _, err := r.redact(ctx, body, resultPlan)
	return redacted, err
}

// Variables replaces the secrets in variables, an encoded object, by Marker. The error is that of
// ctx.
func (r *Redactor) Variables(ctx Canceler, body []byte) ([]byte, error) {
	redacted, _, err := r.redact(ctx, body, freePlan)
	return redacted, err
}

// Text replaces the secrets in a plain text by Marker. The error is that of ctx.
func (r *Redactor) Text(ctx Canceler, text string) (string, error) {
	if r.keywords == nil {
		return text, nil
	}
	raw := []byte(text)
	for pass := range passesMax {
		search := newSearch(ctx, r, len(raw))
		found := search.find(raw)
		switch {
		case search.err != nil:
			return text, search.err
		case len(found) == 0 && pass == 0:
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

// redact replaces the secrets in JSON that a plan selects.
func (r *Redactor) redact(ctx Canceler, body []byte, p *plan) ([]byte, int, error) {
	return r.redactValue(ctx, body, p, false)
}

// redactValue is redact for the value of a field. It replaces the whole value if secret is true.
func (r *Redactor) redactValue(ctx Canceler, body []byte, p *plan, secret bool) ([]byte, int, error) {
	if r.keywords == nil {
		return body, 0, nil
	}
	original, count := body, 0
	for range passesMax {
		reader := wirejson.NewReader(body)
		reader.Around = wirejson.RecordDepth
		w := walker{search: newSearch(ctx, r, len(body)), reader: reader, in: body}
		w.walkValue(p, secret, false)
		reader.Free()
		switch {
		case w.err != nil:
			return original, 0, w.err
		case w.count == 0:
			return body, count, nil
		}
		body, count = append(w.out, body[w.copied:]...), count+w.count
	}
	return body, count, nil
}

// isSecretName reports whether the name of a field marks its value as a secret.
func (r *Redactor) isSecretName(name []byte) bool {
	if r.keywords.containsAny(name) && confidenceOf(name) != noSecret {
		return true
	}
	for _, expr := range r.namePatterns {
		if expr.Match(name) {
			return true
		}
	}
	return false
}

// isPlaceholder reports whether a value only replaces a secret: a marker, stars, the name of a
// variable, YOUR_API_KEY.
func isPlaceholder(value []byte) bool {
	if len(value) == 0 || bytes.Contains(value, []byte(Marker)) || len(bytes.Trim(value, "*xX.…")) == 0 {
		return true
	}
	if hasPrefixFold(value, "your_") || hasPrefixFold(value, "your-") { // YOUR_API_KEY
		return true
	}
	switch first, last := value[0], value[len(value)-1]; {
	case first == '$': // a hash of crypt begins with $ and a digit
		return len(value) == 1 || value[1] < '0' || value[1] > '9'
	case first == '<':
		return last == '>'
	}
	return bytes.HasPrefix(value, []byte("{{")) || bytes.HasPrefix(value, []byte("%(")) ||
		strings.HasPrefix(Marker, string(value[:min(len(value), utf8.UTFMax*len(Marker))])) // cut off at a bracket
}
