package protocol

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Profile is an agent's entry in the directory (documents 1 and 2).
type Profile struct {
	ID              string       `json:"id"`
	Name            string       `json:"name,omitempty" flag:"name" doc:"name for people"`
	Description     string       `json:"description,omitempty" flag:"description" doc:"its work, in words"`
	Specialization  string       `json:"specialization,omitempty" flag:"specialization" doc:"its best capability"`
	Capabilities    []Capability `json:"capabilities,omitempty"`
	Examples        []string     `json:"examples,omitempty" flag:"example" doc:"an {EXAMPLE} of a task for it (repeatable)"`
	AcceptsHandoffs *bool        `json:"accepts_handoffs,omitempty" flag:"accepts" doc:"whether it takes handoffs at all"`
	MaxConcurrency  int          `json:"max_concurrency,omitempty" flag:"max-concurrency" doc:"handoffs at a time, of all its workers and claims together (0: no limit)"`
	MaxExecutionMS  int64        `json:"max_execution_time_ms,omitempty" flag:"max-execution" doc:"work timeout where the package has none"`
	MaxRisk         Risk         `json:"max_risk,omitempty" flag:"max-risk" doc:"low, medium or high (default)"`
	EscalatesTo     string       `json:"escalates_to,omitempty" flag:"escalates-to" doc:"the {AGENT} above it (default human)"`
	// HandsTo lists the agents that it hands off to, and AcceptsFrom those whose handoffs it takes.
	// Each entry is an id or a prefix of ids, prefix*. Absent means all of them.
	HandsTo        []string        `json:"hands_to,omitempty" flag:"hands-to" doc:"an {AGENT} that it hands off to, or the beginning of their names, PREFIX* (repeatable; default all; '' for all again)"`
	AcceptsFrom    []string        `json:"accepts_from,omitempty" flag:"accepts-from" doc:"an {AGENT} whose handoffs it takes, or PREFIX* (repeatable; default all; '' for all again)"`
	Handoffs       HandoffMode     `json:"handoffs,omitempty" flag:"handoffs" doc:"the handoffs that it may make, in place of the fleet's setting: on, off, or simple (to one agent: sequential and delegation)"`
	OnBarred       BarredMode      `json:"on_barred,omitempty" flag:"on-barred" doc:"{MODE} for a result whose hand-off is refused by a limit or a rule: complete (default; as a partial result) or fail"`
	PollPatienceMS int64           `json:"poll_patience_ms,omitempty" flag:"poll-patience" doc:"how long a poll keeps it present, 1s to 24h (default 5m)"`
	AutonomyBudget *float64        `json:"autonomy_budget,omitempty" flag:"autonomy" doc:"the largest autonomy_budget.amount of a package that it takes (default: any)"`
	Approve        Approve         `json:"approve,omitempty" flag:"approve" doc:"{WHICH} handoffs to it are approved first: always, never (default), or from a risk on: low, medium or high; one without a risk is among these"`
	Paused         bool            `json:"paused,omitempty"`        // offers wait, none are claimed
	Policy         PolicyOverrides `json:"policy,omitzero"`         // defaults for handoffs that are offered to it
	Breaker        *Breaker        `json:"breaker,omitempty"`       // of this agent, over the fleet's
	Price          *Price          `json:"price,omitempty" flag:""` // of its model, for a usage without a cost
	Bids           bool            `json:"bids,omitempty" flag:"bids" doc:"whether it is asked for bids, and makes them"`
	// Scopes lists the variables of a workspace that it may set: names, or prefixes followed by *.
	// Absent means all.
	Scopes []string `json:"scopes,omitempty" flag:"scope" doc:"a {NAME} of a variable of its workflow that it may set, or PREFIX* (repeatable; default all; '' for all again)"`
	// Contract constrains the packages that it accepts, and its results.
	Contract *Contract `json:"contract,omitempty" flag:""`
	// MaxContextTokens bounds the estimated tokens of a conversation for it; 0 is no bound.
	MaxContextTokens int `json:"max_context_tokens,omitempty" flag:"max-context-tokens" doc:"how much of a conversation it gets at most, in tokens, as estimated (0: all of it)"`
	// LimitsBy bound its work by keys that it shares with other agents.
	LimitsBy         []KeyLimit `json:"limits_by,omitempty"`
	UpdatedAt        Time       `json:"updated_at,omitzero"`
	RegisteredByWork bool       `json:"registered_by_worker,omitempty"`
}

// Capability is a skill of an agent and its proficiency. A bare string is read as an id with
// proficiency 1.
type Capability struct {
	ID          string  `json:"id"`
	Proficiency float64 `json:"proficiency"` // 0 to 1
}

// Accepts reports whether the agent takes handoffs at all.
func (p Profile) Accepts() bool { return p.AcceptsHandoffs == nil || *p.AcceptsHandoffs }

// PollPatience returns how long one poll keeps the agent present.
func (p Profile) PollPatience() time.Duration {
	if p.PollPatienceMS > 0 {
		return time.Duration(p.PollPatienceMS) * time.Millisecond
	}
	return pollPatienceDefaultMS * time.Millisecond
}

// Holder is a worker process, or a claim made from the command line, as listed in the directory.
// Its entry expires LeaseMS after the last beat.
//
// An agent that polls has one more entry, PollerID, with the time of its last poll. That entry
// holds nothing, and its LeaseMS is the agent's patience.
type Holder struct {
	ID        string `json:"id"` // a UUID
	Agent     string `json:"agent"`
	LeaseMS   int64  `json:"lease_ms"`
	Slots     int    `json:"slots"`
	Busy      int    `json:"busy"`
	Polling   bool   `json:"polling,omitempty"`  // a claim from the command line: it takes no further handoff by itself
	PolledAt  Time   `json:"polled_at,omitzero"` // if Polling: when the agent last polled
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	Draining  bool   `json:"draining,omitempty"`
	Program   bool   `json:"program,omitempty"` // it runs a program for each handoff, which gets no questions
}

// Serves reports whether the holder takes handoffs by itself: a worker does, until it drains.
func (h Holder) Serves() bool { return !h.Polling && !h.Draining }

// Attends reports whether the holder makes its agent present: it serves, or it polls.
func (h Holder) Attends() bool { return !h.Draining }

// IsPoll reports whether the entry only records that the agent has polled.
func (h Holder) IsPoll() bool { return h.Polling && h.ID == PollerID(h.Agent) }

// pollerSpace is the namespace of PollerID.
var pollerSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/poller"))

// PollerID returns the id of the entry that records the last poll of an agent.
func PollerID(agent string) string { return uuid.NewSHA1(pollerSpace, []byte(agent)).String() }

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
	return checkList(field, list, patternsMax, "lists %d patterns", func(pattern *string) *Error { return checkPattern("", *pattern) })
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
