package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol/redact"
)

// redactFlags select the values that are removed from packages, results and all other words before
// they are written.
type redactFlags struct {
	patterns []string
	off      bool
}

func (f *redactFlags) declare(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.patterns, "redact", nil, "take out what this regular `EXPRESSION` matches as well (repeatable; $HANDOFF_REDACT names a file of them)")
	fs.BoolVar(&f.off, "no-redact", false, "write secrets as they are")
}

// redactor makes a redactor of the kinds that ship, the expressions of the file that
// the environment names, and those of the flags; nil is the kinds that ship alone.
func (a *app) redactor() (*redact.Redactor, error) {
	f, path := a.secrets, a.env("HANDOFF_REDACT")
	switch {
	case f.off:
		return new(redact.Redactor), nil
	case path == "" && len(f.patterns) == 0:
		return nil, nil
	}
	var added []string
	if path != "" {
		body, err := a.readFile(path)
		if err != nil {
			// Going on without it would write the secrets it was to keep out.
			return nil, usagef("HANDOFF_REDACT: %v", err)
		}
		for line := range strings.Lines(string(body)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				added = append(added, line)
			}
		}
	}
	redactor, err := redact.New(append(added, f.patterns...))
	if err != nil {
		return nil, usagef("--redact or $HANDOFF_REDACT: %v", err)
	}
	return redactor, nil
}
