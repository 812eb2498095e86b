package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// HandoffMode is what an agent may hand off.
type HandoffMode string

const (
	HandoffsOn     HandoffMode = "on"     // every type of handoff
	HandoffsOff    HandoffMode = "off"    // none: it works alone
	HandoffsSimple HandoffMode = "simple" // to one agent: sequential handoffs and delegations
)

// HandoffModes are all modes.
var HandoffModes = []HandoffMode{HandoffsOn, HandoffsOff, HandoffsSimple}

// BarredMode is what becomes of a result whose hand-off a limit or a rule refuses.
type BarredMode string

const (
	BarredComplete BarredMode = "complete" // it stands, as a partial one, and is listed for a person
	BarredFail     BarredMode = "fail"     // the attempt fails, and no retry follows
)

// BarredModes are all modes.
var BarredModes = []BarredMode{BarredComplete, BarredFail}

// HandsOffTo tells whether the agent may hand off to another one.
func (p *Profile) HandsOffTo(agent string) bool {
	return len(p.HandsTo) == 0 || matchesAny(p.HandsTo, agent)
}

// AcceptsHandoffsFrom tells whether the agent takes the handoffs of another one.
func (p *Profile) AcceptsHandoffsFrom(agent string) bool {
	return len(p.AcceptsFrom) == 0 || matchesAny(p.AcceptsFrom, agent)
}

// RestrictsHandoffs reports whether the profile has a rule about what the agent hands off: to which
// agents, of which types, up to which risk by itself, or what follows from a refusal. A mode of on is
// one, too: the fleet's may be another.
func (p *Profile) RestrictsHandoffs() bool {
	return len(p.HandsTo) > 0 || p.OnBarred == BarredFail || p.MaxRisk != "" || p.Handoffs != ""
}

// matchesAny tells whether an id is one of the patterns: an id, or prefix*.
func matchesAny(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return pattern == id || open && strings.HasPrefix(id, prefix)
	})
}

// checkPatterns checks a list of patterns of agents, if it is there.
func checkPatterns(field string, list []string) *Error {
	if list != nil && len(list) == 0 {
		return Errorf(CodeInvalid, field, "names no agent; leave it out for all of them")
	}
	if n := len(list); n > PatternsMax {
		return Errorf(CodeTooLarge, field, "lists %d patterns, at most %d are allowed", n, PatternsMax)
	}
	for i, pattern := range list {
		if err := checkPattern(fmt.Sprintf("%s[%d]", field, i), pattern); err != nil {
			return err
		}
	}
	return nil
}

// checkPattern checks the id of an agent, or a beginning of ids.
func checkPattern(field, pattern string) *Error {
	prefix, open := strings.CutSuffix(pattern, "*")
	if open && prefix == "" {
		return Errorf(CodeInvalid, field, "is * alone, which is every agent; leave it out for that")
	}
	if err := checkID(field, prefix); err != nil {
		return Errorf(err.Code, field, "%q is neither the id of an agent nor the beginning of ids, such as test-*", pattern)
	}
	return nil
}
