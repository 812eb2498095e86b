package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// HandoffMode is the set of hand-offs that an agent may make.
type HandoffMode string

const (
	HandoffsOn     HandoffMode = "on"     // every type of handoff
	HandoffsOff    HandoffMode = "off"    // none: it works alone
	HandoffsSimple HandoffMode = "simple" // to one agent: sequential handoffs and delegations
)

// HandoffModes lists all modes.
var HandoffModes = []HandoffMode{HandoffsOn, HandoffsOff, HandoffsSimple}

// BarredMode is the treatment of a result whose hand-off a limit or a rule refuses.
type BarredMode string

const (
	BarredComplete BarredMode = "complete" // it is kept, as a partial one, and listed for a person
	BarredFail     BarredMode = "fail"     // the attempt fails, and no retry follows
)

// BarredModes lists all modes.
var BarredModes = []BarredMode{BarredComplete, BarredFail}

// HandsOffTo reports whether the agent may hand off to another one.
func (p *Profile) HandsOffTo(agent string) bool {
	return len(p.HandsTo) == 0 || matchesAny(p.HandsTo, agent)
}

// AcceptsHandoffsFrom reports whether the agent takes the handoffs of another one.
func (p *Profile) AcceptsHandoffsFrom(agent string) bool {
	return len(p.AcceptsFrom) == 0 || matchesAny(p.AcceptsFrom, agent)
}

// RestrictsHandoffs reports whether the profile has a rule about the agent's hand-offs: their
// targets, their types, the risk that it may take alone, or the effect of a refusal. A mode of on
// is a rule too, since the fleet's mode may differ.
func (p *Profile) RestrictsHandoffs() bool {
	return len(p.HandsTo) > 0 || p.OnBarred == BarredFail || p.MaxRisk != "" || p.Handoffs != ""
}

// matchesAny reports whether an id matches one of the patterns: an id, or prefix*.
func matchesAny(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return pattern == id || open && strings.HasPrefix(id, prefix)
	})
}

// checkPatterns checks a list of agent patterns, if present.
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

// checkPattern checks the id of an agent, or a prefix of ids.
func checkPattern(field, pattern string) *Error {
	prefix, open := strings.CutSuffix(pattern, "*")
	if open && prefix == "" {
		return Errorf(CodeInvalid, field, "is *, which matches every agent; leave the field out to allow every agent")
	}
	if err := checkID(field, prefix); err != nil {
		return Errorf(err.Code, field, "%q is neither the id of an agent nor the beginning of ids, such as test-*", pattern)
	}
	return nil
}
