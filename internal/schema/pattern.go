package schema

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// pattern is a regular expression whose matches a meter counts.
type pattern struct {
	*regexp.Regexp
	instructions int
	meter        *meter
}

// MatchString implements jsonschema.Regexp.
func (p pattern) MatchString(text string) bool {
	p.meter.spend(p.instructions + (len(text)+1)*p.instructions/instructsAStep)
	return p.Regexp.MatchString(text)
}

// compilePattern is the jsonschema.RegexpEngine of output schemas. Expressions were measured
// before, so that none exceeds a limit.
func (m *meter) compilePattern(text string) (jsonschema.Regexp, error) {
	size, err := instructions(text)
	if err != nil {
		return nil, err
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return pattern{compiled, size, m}, nil
}

// instructions returns an upper bound of the size of the compiled expression, from the parsed one:
// nothing is compiled.
func instructions(text string) (int, error) {
	if foldsWideRange(text) {
		return 0, fmt.Errorf("ignores case, and has a range of characters beyond ASCII")
	}
	// The parser reads all ranges of each named class, including duplicates.
	size := 3 + namedClass*(strings.Count(text, `\p`)+strings.Count(text, `\P`))
	if size > outputPatternInstructionsMax {
		return size, nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	return size + instructionsOf(parsed), nil
}

// namedClass is the cost of reading \p{L}.
const namedClass = 80

func instructionsOf(re *syntax.Regexp) int {
	below := 0
	for _, sub := range re.Sub {
		below += instructionsOf(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/2/8
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		return below + 2
	case syntax.OpAlternate:
		return below + len(re.Sub)
	case syntax.OpConcat:
		return below
	case syntax.OpRepeat: // x{2,4} is xx(x(x)?)?, and x{2,} is xx+
		return 2 + max(re.Min, re.Max, 1)*below + max(re.Max-re.Min, 0)
	}
	return 1
}

// foldsWideRange detects expressions that the parser handles slowly: with the flag i it visits each
// character of a range, and a range beyond ASCII may have a million.
func foldsWideRange(text string) bool {
	wide := strings.Contains(text, `\x{`)
	for i := 0; i < len(text) && !wide; i++ {
		wide = text[i] >= utf8.RuneSelf
	}
	if !wide || !strings.Contains(text, "-") {
		return false
	}
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++ // an escaped parenthesis begins no group
		case strings.HasPrefix(text[i:], "(?"):
			flags := text[i+2:]
			if end := strings.IndexAny(flags, ":)"); end >= 0 && strings.Contains(flags[:end], "i") {
				return true
			}
		}
	}
	return false
}
