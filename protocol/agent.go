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
	// HandsTo lists the agents that it hands off to, and AcceptsFrom those whose handoffs it takes.
	// Each entry is an id or a prefix of ids, prefix*. Absent means all of them.
	HandsTo        []string        `json:"hands_to,omitempty"`
	AcceptsFrom    []string        `json:"accepts_from,omitempty"`
	Handoffs       HandoffMode     `json:"handoffs,omitempty"`         // absent is on
	OnBarred       BarredMode      `json:"on_barred,omitempty"`        // absent is complete
	PollPatienceMS int64           `json:"poll_patience_ms,omitempty"` // how long one poll keeps the agent present; absent: PollPatienceDefaultMS
	AutonomyBudget *float64        `json:"autonomy_budget,omitempty"`  // the largest autonomy_budget.amount that it takes; absent is any
	Approve        Approve         `json:"approve,omitempty"`          // which handoffs to it need an approval first; absent is never
	Paused         bool            `json:"paused,omitempty"`           // offers wait, none are claimed
	Policy         PolicyOverrides `json:"policy,omitzero"`            // defaults for handoffs that are offered to it
	Breaker        *Breaker        `json:"breaker,omitempty"`          // of this agent, over the fleet's
	Price          *Price          `json:"price,omitempty"`            // of its model, for a usage without a cost
	Bids           bool            `json:"bids,omitempty"`             // it makes bids and is asked for them
	// Scopes lists the variables of a workspace that it may set: names, or prefixes followed by *.
	// Absent means all.
	Scopes []string `json:"scopes,omitempty"`
	// Contract constrains the packages that it accepts, and its results.
	Contract *Contract `json:"contract,omitempty"`
	// MaxContextTokens bounds the estimated tokens of a conversation for it; 0 is no bound.
	MaxContextTokens int  `json:"max_context_tokens,omitempty"`
	UpdatedAt        Time `json:"updated_at,omitzero"`
	RegisteredByWork bool `json:"registered_by_worker,omitempty"`
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
	return PollPatienceDefaultMS * time.Millisecond
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
