package cli

import (
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	formatText  = "text"
	formatJSON  = "json"
	formatJSONL = "jsonl"
)

var formats = []string{formatText, formatJSON, formatJSONL}

// text tells whether people read the output. In the other formats a program does.
func (a *app) text() bool { return a.format == formatText }

// printf writes text for people. What its arguments hold may come from
// anybody's package: it is escaped, the format itself is not.
func (a *app) printf(format string, args ...any) { fprintf(a.out, format, args...) }

// notef writes a remark that is no output, to stderr.
func (a *app) notef(format string, args ...any) { fprintf(a.err, format, args...) }

// progressEvery is how often a long command says how far it is.
const progressEvery = 2 * time.Second

// progress returns a notef for a long command, which most calls pass over. Many goroutines
// may call it.
func (a *app) progress() func(format string, args ...any) {
	var mu sync.Mutex
	said := time.Now()
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(said) > progressEvery {
			said = time.Now()
			a.notef(format, args...)
		}
	}
}

// styled is text of our own that reaches the terminal as it is.
type styled string

func fprintf(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case styled:
		case error:
			args[i] = protocol.Printable(arg.Error())
		case fmt.Stringer:
			args[i] = protocol.Printable(arg.String())
		default:
			if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
				args[i] = protocol.Printable(v.String())
			}
		}
	}
	fmt.Fprintf(w, format, args...)
}

// fields writes "name  value" lines, leaving out those without a value.
func (a *app) fields(pairs ...string) error {
	var rows [][]string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i], pairs[i+1]})
		}
	}
	return a.table(rows)
}

// phase is the phase of a handoff, in its colour.
func (a *app) phase(s protocol.State) styled {
	return a.coloured(phaseColour(s.Phase, s.Outcome, s.Closed, s.EscalationLevel), explain.Phase(s))
}
