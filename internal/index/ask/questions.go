// Package ask has the questions that an index answers, their answers, and the client that
// sends them over the engine.
//
// It holds no database: a program that asks links neither SQLite nor the index. Cursors are
// opaque here.
package ask

import (
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Limits of a query.
const (
	PageDefault = 50    // handoffs on a page, by default
	PageMax     = 1_000 // handoffs on a page at most
	// PageBytesMax bounds an answer. A page ends early rather than exceed it; its cursor
	// continues after the last row.
	PageBytesMax = 512 << 10
	FilterMax    = 64    // values of one field of a Filter
	CountByMax   = 3     // fields of CountQuery.By
	TextBytesMax = 1_024 // of Filter.Text
	// FamilyMax bounds the handoffs of a Family answer: the largest group and its own
	// handoff. FamilyBytesMax keeps the answer within a message of the engine.
	FamilyMax      = protocol.AgentsMax + 1
	FamilyBytesMax = 960 << 10
	FiguresTopMax  = 100 // rows of each table of a Figures answer
)

// Filter selects handoffs. Fields are joined by AND, the values of one field by OR. The zero
// value selects all; values are compared exactly.
type Filter struct {
	Agent   []string           `json:"agent,omitempty" flag:"agent,,commas" doc:"in the queue or the hands of this {AGENT}, or last there"`
	Source  []string           `json:"source,omitempty" flag:"source,,commas" doc:"handed off by {AGENT}, schedule:NAME or signal:NAME"`
	Target  []string           `json:"target,omitempty" flag:"target" doc:"submitted to this {TARGET}: an agent or a capability"`
	From    []string           `json:"from,omitempty"` // the source, or an agent that had it, now or before
	To      []string           `json:"to,omitempty"`   // the target, or an agent that had it, now or before
	Phase   []protocol.Phase   `json:"phase,omitempty" flag:"phase,,commas" doc:"in this {PHASE}"`
	Outcome []protocol.Outcome `json:"outcome,omitempty" flag:"outcome,,commas" doc:"closed with this {OUTCOME}"`
	// Open false selects closed ones.
	Open           *bool               `json:"open,omitempty" flag:"open" doc:"not closed"`
	Priority       []protocol.Priority `json:"priority,omitempty" flag:"priority,,commas" doc:"of this {PRIORITY}"`
	Type           []protocol.Type     `json:"type,omitempty" flag:"type,,commas" doc:"of this {TYPE}"`
	WorkflowID     []string            `json:"workflow_id,omitempty" flag:"workflow" doc:"of the workflow with this {ID}"`
	ConversationID []string            `json:"conversation_id,omitempty" flag:"conversation" doc:"of the conversation with this {ID}"`
	TaskID         []string            `json:"task_id,omitempty" flag:"task" doc:"of the task with this {ID}"`
	Variant        []string            `json:"variant,omitempty" flag:"variant,,commas" doc:"in this {VARIANT} of an experiment, as models/new"`
	Parent         []string            `json:"parent,omitempty" flag:"parent,,commas" doc:"handed off by this {TICKET}"`
	Group          []string            `json:"group,omitempty" flag:"group,,commas" doc:"members of the group with this {TICKET}"`
	Ticket         []string            `json:"ticket,omitempty" flag:"ticket,,commas" doc:"with this {TICKET}"`
	Gate           []protocol.GateKind `json:"gate,omitempty" flag:"gate,,commas" doc:"waiting for this {GATE} before its next offer: {}"`
	Barred         bool                `json:"barred,omitempty" flag:"barred" doc:"refused a hand-off by a limit or a rule"`
	Deadlocked     bool                `json:"deadlocked,omitempty" flag:"deadlocked" doc:"taken out of a circle of handoffs that waited for one another, or a hand-off of it was refused as circular"`
	// Since and Until bound the submission: Since <= submitted_at < Until.
	Since protocol.Time `json:"since,omitzero" flag:"since" doc:"submitted since {WHEN}: an instant, or a duration ago (2h, 3d)"`
	Until protocol.Time `json:"until,omitzero" flag:"until" doc:"submitted before {WHEN}"`
	// UpdatedSince bounds the last change likewise.
	UpdatedSince protocol.Time `json:"updated_since,omitzero" flag:"changed-since" doc:"changed since {WHEN}"`
	// Text is searched in the description of the task and the reason of the handoff. All of
	// its words must be there, in any order; a word that ends in * is a prefix.
	Text string `json:"text,omitempty" flag:"text" doc:"with all these {WORDS} in the task's description or the reason; wor* is a beginning"`
}

// Sort is the order of a list.
type Sort string

const (
	SortNewest  Sort = "newest"  // submitted last, first; the default
	SortOldest  Sort = "oldest"  // submitted first, first
	SortUpdated Sort = "updated" // changed last, first
)

// Sorts are all orders.
var Sorts = []Sort{SortNewest, SortOldest, SortUpdated}

// Position is the place in the ledger up to which an answer is right.
type Position struct {
	// Seq is how many entries the index has read: with one partition the sequence of the last one.
	Seq uint64 `json:"seq"`
	// Place is the place in a ledger of several partitions (broker.Cursor).
	Place string `json:"place,omitempty"`
	// Behind is how many more entries the ledger had when the question arrived. BehindMS is
	// the age of the last entry that the index has, where that is known.
	Behind   uint64 `json:"behind"`
	BehindMS int64  `json:"behind_ms,omitempty"`
	// Complete reports that the answer includes every append acknowledged before the question.
	Complete bool `json:"complete"`
}

// Has reports whether the index has read an entry.
func (p *Position) Has(seq uint64) bool { return p.Cursor().Passed(seq) }

// Cursor returns the place in the ledger up to which the answer is right.
func (p *Position) Cursor() broker.Cursor {
	if p.Place != "" {
		place, _ := broker.ParseCursor(p.Place) // nil is the beginning
		return place
	}
	if p.Seq == 0 {
		return nil
	}
	return broker.From(p.Seq + 1)
}

// SetPosition makes any answer, as each embeds a Position, name the entry up to which it is right.
func (p *Position) SetPosition(at Position) { *p = at }

// Question has the fields that every question has. The index waits up to WaitMS until it
// has every entry that the ledger had when the question arrived.
type Question struct {
	WaitMS int64 `json:"wait_ms,omitempty"` // 0 is 2 s, at most 60 s; negative does not wait
}

// ListQuery asks for a page of handoffs.
type ListQuery struct {
	Question
	Filter Filter `json:"filter"`
	Sort   Sort   `json:"sort,omitempty"`
	Limit  int    `json:"limit,omitempty"` // 0 is PageDefault
	// Cursor continues after the last row of a page. It is valid only for the same Filter and
	// Sort. While handoffs are added, none appears twice and none is left out; with
	// SortUpdated a handoff that changes meanwhile may appear again.
	Cursor string `json:"cursor,omitempty"`
}

// ListAnswer is a page.
type ListAnswer struct {
	Position
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
	Reason         string            `json:"reason_code,omitempty"` // of the outcome, or of the current phase
	Type           protocol.Type     `json:"type"`
	Priority       protocol.Priority `json:"priority"`
	Source         string            `json:"source"`
	Schedule       string            `json:"schedule,omitempty"` // that submitted it
	Rule           string            `json:"rule,omitempty"`     // that submitted it for a signal
	Target         string            `json:"target"`             // in words
	Agent          string            `json:"agent"`
	Holder         string            `json:"holder,omitempty"`
	Attempts       int               `json:"attempts"` // started, at any agent
	Reroutes       int               `json:"reroutes"`
	Level          int               `json:"escalation_level"`
	WorkflowID     string            `json:"workflow_id,omitempty"`
	ConversationID string            `json:"conversation_id,omitempty"`
	TaskID         string            `json:"task_id,omitempty"`
	Variant        string            `json:"variant,omitempty"` // experiment/variant
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
	Gate           protocol.GateKind `json:"gate,omitempty"`     // before its next offer
	GatedAt        protocol.Time     `json:"gated_at,omitzero"`
	Barred         bool              `json:"barred,omitempty"`     // a limit or a rule refused a hand-off of it
	Deadlocked     bool              `json:"deadlocked,omitempty"` // it was taken out of a circle, or a hand-off of it was refused as one
	Tokens         int64             `json:"tokens,omitempty"`
	CostMicros     int64             `json:"cost_micros,omitempty"`
}

// From returns the source, or the schedule or rule that submitted the handoff, as protocol.Summary.From.
func (r *Row) From() string {
	return (&protocol.Summary{Source: r.Source, Schedule: r.Schedule, Rule: r.Rule}).From()
}

// SetFrom sets the fields that From has.
func (r *Row) SetFrom(from string) {
	source, name, _ := strings.Cut(from, ":")
	switch r.Source = source; source {
	case protocol.ScheduleSource:
		r.Schedule = name
	case protocol.SignalSource:
		r.Rule = name
	}
}

// CheckFrom refuses a source that no handoff can have: it is a name, schedule:NAME or signal:NAME.
func CheckFrom(field, from string) error {
	source, name, named := strings.Cut(from, ":")
	if named && (source == protocol.ScheduleSource || source == protocol.SignalSource) {
		from = name
	}
	return protocol.CheckID(field, from)
}

// CountQuery asks how many handoffs a filter selects, in all and by up to CountByMax fields.
type CountQuery struct {
	Question
	Filter Filter `json:"filter"`
	By     []By   `json:"by,omitempty"` // at most 3
	// Had adds to a count by target how many handoffs each target had, now or before.
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

// CountAnswer has the total, and the groups with the largest first.
type CountAnswer struct {
	Position
	Count  int64        `json:"count"`
	Groups []CountGroup `json:"groups,omitempty"`
}

// CountGroup counts the handoffs with these values, which are in the order of CountQuery.By.
type CountGroup struct {
	Values []string `json:"values"`
	Count  int64    `json:"count"`
	// Had is how many handoffs the agent of this name had, now or before, whatever their
	// target (CountQuery.Had).
	Had int64 `json:"had,omitempty"`
}

// FamilyQuery asks for the family of a handoff: its first ancestor and all descendants of
// that one. Parents, members of groups, returns and redrives are related.
type FamilyQuery struct {
	Question
	Ticket string `json:"ticket"`
}

// FamilyAnswer has the root first, and every parent before its children. More means that
// FamilyMax or FamilyBytesMax cut it off.
type FamilyAnswer struct {
	Position
	Handoffs []Row `json:"handoffs"`
	More     bool  `json:"more,omitempty"`
}

// AheadQuery asks how many offers are ahead of a pending handoff in its agent's queue: those
// of more urgent priorities, and the earlier ones of its own.
type AheadQuery struct {
	Question
	Ticket string `json:"ticket"`
}

// AheadAnswer counts the offers ahead. Waiting is false for a handoff in no queue.
type AheadAnswer struct {
	Position
	Waiting bool  `json:"waiting"`
	Ahead   int64 `json:"ahead"`
}

// FiguresQuery asks for success rates, durations and refusals of the handoffs of a filter.
type FiguresQuery struct {
	Question
	Filter Filter `json:"filter"`
	Top    int    `json:"top,omitempty"` // rows of each table; 0 is 10
}

// FiguresAnswer has the figures in all and in tables, each with its largest rows.
type FiguresAnswer struct {
	Position
	All       Figures        `json:"all"`
	ByAgent   []Figures      `json:"by_agent"` // Key is the agent
	ByPair    []Figures      `json:"by_pair"`  // Key is "source -> target"
	ByType    []Figures      `json:"by_type"`
	ByVariant []Figures      `json:"by_variant"` // Key is "experiment/variant"; of handoffs in experiments
	Refusals  []RefusalCount `json:"refusals"`   // the most frequent reasons
	Workflows []CountGroup   `json:"workflows"`  // handoffs per workflow
	// Barred are the hand-offs that a limit or a rule refused, the most frequent; Gates are by kind,
	// and Budgets by dimension, those of which something is known.
	Barred    []BarredCount   `json:"barred"`
	Gates     []GateFigures   `json:"gates"`
	Budgets   []BudgetFigures `json:"budgets"`
	Deadlocks int64           `json:"deadlocks"` // handoffs taken out of a circle, and hand-offs refused as one
}

// BarredCount is how often hand-offs of a source to a target were refused with a code.
type BarredCount struct {
	Code  string `json:"code"`
	From  string `json:"from"`
	To    string `json:"to,omitempty"` // in words
	Count int64  `json:"count"`
}

// GateFigures sum up the waits of handoffs before an offer.
type GateFigures struct {
	Gate    protocol.GateKind `json:"gate"`
	Waiting int64             `json:"waiting"` // now
	Passed  int64             `json:"passed"`
	Denied  int64             `json:"denied"`
	Lapsed  int64             `json:"lapsed"`    // an approver did not answer in time
	Ended   int64             `json:"ended"`     // the handoff closed, or moved on, for another reason
	Waited  Durations         `json:"waited_ms"` // of those that are over
}

// BudgetFigures sum up one dimension of limits. The amounts are those of handoffs that follow from no
// other: their accounts have all that follows from them.
type BudgetFigures struct {
	Limit        string `json:"limit"`    // one of protocol.Dimensions
	Handoffs     int64  `json:"handoffs"` // that have such a limit
	Granted      int64  `json:"granted"`
	Used         int64  `json:"used"`
	Reserved     int64  `json:"reserved"`      // for handoffs that are open
	Over         int64  `json:"over"`          // used beyond the limit
	OverHandoffs int64  `json:"over_handoffs"` // that used more than their limit
}

// Figures sum up a set of handoffs. Rates are from 0 to 1, and absent for an empty set.
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
	Tokens     *int64    `json:"tokens"`      // null where no usage is known
	CostMicros *int64    `json:"cost_micros"` // likewise
	Reported   int64     `json:"reported"`    // closed, and their use is known
	Queue      Durations `json:"queue_ms"`
	Work       Durations `json:"work_ms"`
	Whole      Durations `json:"whole_ms"`
}

// Durations are the mean and percentiles in milliseconds, of Count handoffs.
type Durations struct {
	Count int64 `json:"count"`
	Mean  int64 `json:"mean"`
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

// PositionQuery asks how far the index has read the ledger.
type PositionQuery struct{ Question }

// PositionAnswer has the position, and the size of the index.
type PositionAnswer struct {
	Position
	Handoffs  int64     `json:"handoffs"`
	FileBytes int64     `json:"file_bytes"`
	Since     time.Time `json:"since"` // when this process opened it
	Rebuilds  int64     `json:"rebuilds"`
	// Filling means that the index reads the ledger from its beginning. Answers are right up
	// to their position, and slow.
	Filling bool `json:"filling,omitempty"`
}
