package protocol

import (
	"math"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// The words that the checks are written in. A field that may be left out
// passes when it is empty.

// required refuses a text that says nothing.
func required(field, text string) *Error {
	if strings.TrimSpace(text) == "" {
		return Errorf(CodeMissing, field, "is missing or empty")
	}
	return nil
}

func checkID(field, id string) *Error {
	if err := CheckID(field, id); err != nil {
		return err.(*Error)
	}
	return nil
}

func checkAgent(field, name string) *Error {
	if err := CheckAgent(field, name); err != nil {
		return err.(*Error)
	}
	return nil
}

func optionalAgent(field, name string) *Error {
	if name == "" {
		return nil
	}
	return checkAgent(field, name)
}

func optionalID(field, id string) *Error {
	if id == "" {
		return nil
	}
	return checkID(field, id)
}

// checkName checks a name that others gave: any text of NameBytesMax without
// control characters. The state keeps such names, and NATS headers and logs show them.
func checkName(field, name string) *Error {
	if len(name) > NameBytesMax {
		return tooLarge(field, len(name), NameBytesMax)
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r != 0 && (r < ' ' || r == 0x7f) }); i >= 0 {
		return Errorf(CodeInvalid, field, "has a control character at byte %d", i)
	}
	return nil
}

func oneOf[T ~string](field string, value T, all []T) *Error {
	if value == "" || slices.Contains(all, value) {
		return nil
	}
	words := make([]string, len(all))
	for i, word := range all {
		words[i] = string(word)
	}
	return Errorf(CodeInvalid, field, "must be one of %s, not %q", strings.Join(words, ", "), wirejson.Clip(string(value)))
}

// chosen is oneOf for a field that is there: empty is no choice.
func chosen[T ~string](field string, value T, all []T) *Error {
	if value == "" {
		return Errorf(CodeMissing, field, "is there but empty; leave it out or fill it in")
	}
	return oneOf(field, value, all)
}

func between(field string, n, least, most int64) *Error {
	if n < least || n > most {
		return Errorf(CodeInvalid, field, "must be from %d to %d, not %d", least, most, n)
	}
	return nil
}

func checkAmount(field string, amount *float64) *Error {
	if amount != nil && !(*amount >= 0 && *amount <= BudgetMax) { // NaN is neither
		return Errorf(CodeInvalid, field, "must be from 0 to %g, not %g", float64(BudgetMax), *amount)
	}
	return nil
}

func checkProficiency(field string, p float64) *Error {
	if math.IsNaN(p) || p < 0 || p > 1 {
		return Errorf(CodeInvalid, field, "must be from 0 to 1, not %g", p)
	}
	return nil
}
