package index

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of a query.
const (
	PageDefault = 50    // handoffs on a page where the query does not say
	PageMax     = 1_000 // handoffs on a page at most
	// PageBytesMax bounds an answer: a page ends early rather than grow over
	// it, and its cursor goes on behind the last row.
	PageBytesMax = 512 << 10
	FilterMax    = 64    // values of one field of a Filter
	TextBytesMax = 1_024 // of Filter.Text
	// FamilyMax bounds the handoffs of a Family answer: the largest group and
	// itself. So that it fits a message of the engine it has FamilyBytesMax at most.
	FamilyMax      = protocol.AgentsMax + 1
	FamilyBytesMax = 960 << 10
	FiguresTopMax  = 100 // rows of each table of a Figures answer
)

// Filter selects handoffs. Fields are joined by AND, the values of one field by
// OR; the zero value selects all. Values are compared exactly.
type Filter struct {
	Agent          []string            `json:"agent,omitempty"`  // whose queue it is, or was last, in
	Source         []string            `json:"source,omitempty"` // who handed over
	Target         []string            `json:"target,omitempty"` // who was asked for: an agent, a capability, or group members by name
	From           []string            `json:"from,omitempty"`   // the source, or an agent that had it, now or before
	To             []string            `json:"to,omitempty"`     // the target, or an agent that had it, now or before
	Phase          []protocol.Phase    `json:"phase,omitempty"`
	Outcome        []protocol.Outcome  `json:"outcome,omitempty"`
	Open           *bool               `json:"open,omitempty"` // true: open ones, false: closed ones
	Priority       []protocol.Priority `json:"priority,omitempty"`
	Type           []protocol.Type     `json:"type,omitempty"`
	WorkflowID     []string            `json:"workflow_id,omitempty"`
	ConversationID []string            `json:"conversation_id,omitempty"`
	TaskID         []string            `json:"task_id,omitempty"`
	Parent         []string            `json:"parent,omitempty"` // tickets
	Group          []string            `json:"group,omitempty"`  // tickets
	Ticket         []string            `json:"ticket,omitempty"`
	// Since and Until bound the submission: Since <= submitted_at < Until.
	Since protocol.Time `json:"since,omitzero"`
	Until protocol.Time `json:"until,omitzero"`
	// UpdatedSince bounds the last change likewise.
	UpdatedSince protocol.Time `json:"updated_since,omitzero"`
	// Text is searched in the description of the task and the reason of the
	// handoff: all of its words, in any order; a word ending in * is a beginning.
	Text string `json:"text,omitempty"`
}

// Sort is an order of a list.
type Sort string

const (
	SortNewest  Sort = "newest"  // submitted last, first; the default
	SortOldest  Sort = "oldest"  // submitted first, first
	SortUpdated Sort = "updated" // changed last, first
)

// Sorts are all orders.
var Sorts = []Sort{SortNewest, SortOldest, SortUpdated}

// Stand is what an answer rests on.
type Stand struct {
	// Seq is the ledger sequence up to which the index has everything.
	Seq uint64 `json:"seq"`
	// Behind is how many entries the ledger had beyond that when it was asked,
	// and BehindMS how much later the ledger's end is than what the index has, as
	// far as that is known.
	Behind   uint64 `json:"behind"`
	BehindMS int64  `json:"behind_ms,omitempty"`
	// Complete says that every append acknowledged before the question is in.
	Complete bool `json:"complete"`
}

// Ask is what every query says about freshness. An answer waits up to WaitMS
// until the index has what the ledger had when the question came in.
type Ask struct {
	WaitMS int64 `json:"wait_ms,omitempty"` // 0 is 2 s, at most 60 s; negative does not wait
}

// ListQuery asks for a page of handoffs.
type ListQuery struct {
	Ask
	Filter Filter `json:"filter"`
	Sort   Sort   `json:"sort,omitempty"`
	Limit  int    `json:"limit,omitempty"` // 0 is PageDefault
	// Cursor goes on behind the last row of a page. It is good only for the same
	// Filter and Sort, and stays right while handoffs are added: none comes twice
	// and none that was there is left out (by SortUpdated a handoff that changes
	// meanwhile is found at its new place, so may come again).
	Cursor string `json:"cursor,omitempty"`
}

// ListAnswer is a page.
type ListAnswer struct {
	Stand
	Handoffs []Row  `json:"handoffs"`
	Cursor   string `json:"cursor,omitempty"` // of the next page; empty at the end
}

// Row is one handoff as a list shows it.
type Row struct {
	Ticket         string            `json:"ticket"`
	Seq            uint64            `json:"seq"` // of its head
	Phase          protocol.Phase    `json:"phase"`
	Closed         bool              `json:"closed"`
	Outcome        protocol.Outcome  `json:"outcome"`
	Reason         string            `json:"reason_code,omitempty"` // of the outcome, or of what blocks it
	Type           protocol.Type     `json:"type"`
	Priority       protocol.Priority `json:"priority"`
	Source         string            `json:"source"`
	Target         string            `json:"target"` // in words
	Agent          string            `json:"agent"`
	Holder         string            `json:"holder,omitempty"`
	Attempts       int               `json:"attempts"` // begun anywhere
	Reroutes       int               `json:"reroutes"`
	Level          int               `json:"escalation_level"`
	WorkflowID     string            `json:"workflow_id,omitempty"`
	ConversationID string            `json:"conversation_id,omitempty"`
	TaskID         string            `json:"task_id,omitempty"`
	Parent         string            `json:"parent,omitempty"`
	Group          string            `json:"group,omitempty"`
	ReturnOf       string            `json:"return_of,omitempty"`
	Origin         string            `json:"origin,omitempty"`
	Description    string            `json:"description"` // of the task, cut to 200 bytes
	Why            string            `json:"reason"`      // of the handoff, cut to 200 bytes
	SubmittedAt    protocol.Time     `json:"submitted_at"`
	UpdatedAt      protocol.Time     `json:"updated_at"`
	ClosedAt       protocol.Time     `json:"closed_at,omitzero"`
	QueueMS        *int64            `json:"queue_ms,omitempty"` // first offered to first accepted
	WorkMS         *int64            `json:"work_ms,omitempty"`  // last accepted to closed
	WholeMS        *int64            `json:"whole_ms,omitempty"` // submitted to closed
	Tokens         int64             `json:"tokens,omitempty"`
}

// CountQuery asks how many handoffs a filter selects, in all and by some fields.
type CountQuery struct {
	Ask
	Filter Filter `json:"filter"`
	By     []By   `json:"by,omitempty"` // at most 3
	// Had asks, beside a count by target, how many handoffs the same name had.
	Had bool `json:"had,omitempty"`
}

// By is a field to count by.
type By string

const (
	BySource   By = "source"
	ByTarget   By = "target"
	ByAgent    By = "agent"
	ByPhase    By = "phase"
	ByOutcome  By = "outcome"
	ByPriority By = "priority"
	ByType     By = "type"
)

// Bys are all fields to count by.
var Bys = []By{BySource, ByTarget, ByAgent, ByPhase, ByOutcome, ByPriority, ByType}

// CountAnswer is how many there are. Groups are sorted, the largest first.
type CountAnswer struct {
	Stand
	Count  int64        `json:"count"`
	Groups []CountGroup `json:"groups,omitempty"`
}

// CountGroup is how many have these values, in the order of CountQuery.By.
type CountGroup struct {
	Values []string `json:"values"`
	Count  int64    `json:"count"`
	// Had is how many stood with the agent that the target names, now or before,
	// whoever was asked (CountQuery.Had).
	Had int64 `json:"had,omitempty"`
}

// FamilyQuery asks for the handoffs that belong together with one: what it
// follows from, up to the first, and all that follows from that. Parents,
// members of groups, returns and redrives are relations.
type FamilyQuery struct {
	Ask
	Ticket string `json:"ticket"`
}

// FamilyAnswer has the root first and every parent before its children. More
// says that FamilyMax or FamilyBytesMax cut it off.
type FamilyAnswer struct {
	Stand
	Handoffs []Row `json:"handoffs"`
	More     bool  `json:"more,omitempty"`
}

// AheadQuery asks how many offers a pending handoff has before it in its
// agent's queue: those of more urgent lanes, and of its own those offered before.
type AheadQuery struct {
	Ask
	Ticket string `json:"ticket"`
}

// AheadAnswer is that; Waiting is false when it does not stand in a queue.
type AheadAnswer struct {
	Stand
	Waiting bool  `json:"waiting"`
	Ahead   int64 `json:"ahead"`
}

// FiguresQuery asks how handoffs went, of those that the filter selects.
type FiguresQuery struct {
	Ask
	Filter Filter `json:"filter"`
	Top    int    `json:"top,omitempty"` // rows of each table; 0 is 10
}

// FiguresAnswer is that.
type FiguresAnswer struct {
	Stand
	All       Figures        `json:"all"`
	ByAgent   []Figures      `json:"by_agent"` // Key is the agent
	ByPair    []Figures      `json:"by_pair"`  // Key is "source -> target"
	ByType    []Figures      `json:"by_type"`
	Refusals  []RefusalCount `json:"refusals"`  // the most frequent reasons
	Workflows []CountGroup   `json:"workflows"` // handoffs per workflow
}

// Figures are those of some handoffs. Rates are 0 to 1, and absent where there
// was nothing to divide.
type Figures struct {
	Key        string    `json:"key,omitempty"`
	Handoffs   int64     `json:"handoffs"`
	Open       int64     `json:"open"`
	Succeeded  int64     `json:"succeeded"`  // closed with success or partial
	Failed     int64     `json:"failed"`     // closed with anything else
	Success    *float64  `json:"success"`    // succeeded of the closed
	Accepted   int64     `json:"accepted"`   // acknowledgements of this agent, where by agent
	Refused    int64     `json:"refused"`    // likewise
	Acceptance *float64  `json:"acceptance"` // accepted of accepted and refused
	Attempts   int64     `json:"attempts"`
	Tokens     int64     `json:"tokens"`
	Queue      Durations `json:"queue_ms"`
	Work       Durations `json:"work_ms"`
	Whole      Durations `json:"whole_ms"`
}

// Durations are percentiles in milliseconds, of Count handoffs.
type Durations struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50"`
	P95   int64 `json:"p95"`
	P99   int64 `json:"p99"`
}

// RefusalCount is how often an agent refused for a reason.
type RefusalCount struct {
	Agent  string `json:"agent"`
	Reason string `json:"reason"` // its code, or its words where it has none
	Count  int64  `json:"count"`
}

// StandQuery asks how far the index is.
type StandQuery struct{ Ask }

// StandAnswer is that, and what the index is made of.
type StandAnswer struct {
	Stand
	Handoffs  int64     `json:"handoffs"`
	FileBytes int64     `json:"file_bytes"`
	Since     time.Time `json:"since"` // when this process opened it
	Rebuilds  int64     `json:"rebuilds"`
	// Filling says that the file is being made from the ledger's beginning:
	// answers are right as far as they go, and slow.
	Filling bool `json:"filling,omitempty"`
}
