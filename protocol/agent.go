package protocol

import (
	"time"

	"github.com/google/uuid"
)

// Profile is an agent's entry in the directory (documents 1 and 2).
type Profile struct {
	ID              string       `json:"id"`
	Name            string       `json:"name,omitempty"`
	Description     string       `json:"description,omitempty"`
	Specialization  string       `json:"specialization,omitempty"`
	Capabilities    []Capability `json:"capabilities,omitempty"`
	Examples        []string     `json:"examples,omitempty"`
	AcceptsHandoffs *bool        `json:"accepts_handoffs,omitempty"` // absent is true
	MaxConcurrency  int          `json:"max_concurrency,omitempty"`  // of all its workers and claims together; 0 is no limit
	MaxExecutionMS  int64        `json:"max_execution_time_ms,omitempty"`
	MaxRisk         Risk         `json:"max_risk,omitempty"`     // absent is high
	EscalatesTo     string       `json:"escalates_to,omitempty"` // absent is human
	// HandsTo and AcceptsFrom are the edges: the agents that it hands off to, and those whose
	// handoffs it takes, each an id or a beginning of ids, prefix*. Absent is all of them.
	HandsTo        []string        `json:"hands_to,omitempty"`
	AcceptsFrom    []string        `json:"accepts_from,omitempty"`
	Handoffs       HandoffMode     `json:"handoffs,omitempty"`         // absent is on
	OnBarred       BarredMode      `json:"on_barred,omitempty"`        // absent is complete
	PollPatienceMS int64           `json:"poll_patience_ms,omitempty"` // how long one poll keeps the agent present; absent is PollPatienceDefaultMS
	AutonomyBudget *float64        `json:"autonomy_budget,omitempty"`  // the largest autonomy_budget.amount that it takes; absent is any
	Approve        Approve         `json:"approve,omitempty"`          // which handoffs to it are approved first; absent is never
	Paused         bool            `json:"paused,omitempty"`           // offers wait, none are claimed
	Policy         PolicyOverrides `json:"policy,omitzero"`            // defaults for what is offered to it
	Breaker        *Breaker        `json:"breaker,omitempty"`          // of this agent, over the fleet's
	Price          *Price          `json:"price,omitempty"`            // of its model: what a usage without a cost costs
	Bids           bool            `json:"bids,omitempty"`             // it is asked for bids, and makes them
	// Scopes are the variables of a workspace that it may set: names, or beginnings with a *
	// behind them. Absent is all.
	Scopes []string `json:"scopes,omitempty"`
	// Contract is what it expects of a package, and what its results are.
	Contract *Contract `json:"contract,omitempty"`
	// MaxContextTokens bounds the conversation of a package for it, as estimated; 0 is no bound.
	MaxContextTokens int  `json:"max_context_tokens,omitempty"`
	UpdatedAt        Time `json:"updated_at,omitzero"`
	RegisteredByWork bool `json:"registered_by_worker,omitempty"`
}

// Capability is something an agent can do, and how well. A bare string is
// read as an id with proficiency 1.
type Capability struct {
	ID          string  `json:"id"`
	Proficiency float64 `json:"proficiency"` // 0 to 1
}

// Accepts tells whether the agent takes handoffs at all.
func (p Profile) Accepts() bool { return p.AcceptsHandoffs == nil || *p.AcceptsHandoffs }

// PollPatience is how long one poll keeps the agent present.
func (p Profile) PollPatience() time.Duration {
	if p.PollPatienceMS > 0 {
		return time.Duration(p.PollPatienceMS) * time.Millisecond
	}
	return PollPatienceDefaultMS * time.Millisecond
}

// Holder is one worker process, or one claim made from the command line, as
// the directory knows it. Its entry expires LeaseMS after the last beat.
//
// An agent that polls has one entry more, PollerID, which says when it last did.
// That one holds nothing, and its LeaseMS is the agent's patience.
type Holder struct {
	ID        string `json:"id"` // a UUID
	Agent     string `json:"agent"`
	LeaseMS   int64  `json:"lease_ms"`
	Slots     int    `json:"slots"`
	Busy      int    `json:"busy"`
	Polling   bool   `json:"polling,omitempty"`  // a claim from the command line: it takes nothing more by itself
	PolledAt  Time   `json:"polled_at,omitzero"` // where Polling: when the agent was last heard of
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	Draining  bool   `json:"draining,omitempty"`
}

// Serves tells whether the holder takes handoffs by itself: a worker does, until
// it drains.
func (h Holder) Serves() bool { return !h.Polling && !h.Draining }

// Attends tells whether the holder's agent is there because of it: it serves, or
// it polls.
func (h Holder) Attends() bool { return !h.Draining }

// IsPoll tells whether the entry says no more than that the agent has polled.
func (h Holder) IsPoll() bool { return h.Polling && h.ID == PollerID(h.Agent) }

// pollerSpace is the name space of PollerID.
var pollerSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/poller"))

// PollerID is the id of the entry that says when an agent last polled.
func PollerID(agent string) string { return uuid.NewSHA1(pollerSpace, []byte(agent)).String() }
