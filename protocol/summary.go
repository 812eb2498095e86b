package protocol

// Summary is the part of a package that the State keeps.
type Summary struct {
	Type           Type                 `json:"type"`
	Source         string               `json:"source"`
	Target         Target               `json:"target"`
	Priority       Priority             `json:"priority"`
	Deadline       Time                 `json:"deadline,omitzero"`
	Parent         string               `json:"parent,omitempty"`
	WorkflowID     string               `json:"workflow_id,omitempty"`
	ConversationID string               `json:"conversation_id,omitempty"`
	TaskID         string               `json:"task_id,omitempty"`
	Requires       []RequiredCapability `json:"requires,omitempty"`
	Risk           Risk                 `json:"risk,omitempty"`
	Digest         string               `json:"digest"` // sha256 of the package as stored
	// N is its place among the children of Parent, from 1; 0 is a handoff that
	// names a parent which did not hand it off itself.
	N int `json:"n,omitempty"`
	// Group is the ticket of the group it belongs to; Aggregate makes it one.
	Group     string     `json:"group,omitempty"`
	Aggregate *Aggregate `json:"aggregate,omitempty"`
	// ReturnExpected says that its end is delivered to the source; Wait is what
	// a parent does meanwhile (block or continue), where it does not close.
	ReturnExpected bool   `json:"return_expected,omitempty"`
	Wait           string `json:"wait,omitempty"`
	ReturnOf       string `json:"return_of,omitempty"` // the handoff whose return this is
	// EndOf is handoff where its own end is what its source or parent gets, and not that of
	// the chain which it begins.
	EndOf ReturnScope `json:"end_of,omitempty"`
	// ChainOf is the first handoff of the chain that this one goes on with, where its source or
	// parent waits for the end of that. ReturnFrom is since when the return's clock runs.
	ChainOf    string `json:"chain_of,omitempty"`
	ReturnFrom Time   `json:"return_from,omitzero"`
	Origin     string `json:"origin,omitempty"` // the handoff that this one redrives
	// Excluded are the agents that refused the handoff which this one follows from, or
	// redrives. Again says that a redriven group does not exclude them.
	Excluded []string `json:"excluded,omitempty"`
	Again    bool     `json:"again,omitempty"`
	// AwaitsSource says that it begins when its parent completes.
	AwaitsSource bool `json:"awaits_source,omitempty"`
	// Lineage is the way that led to it; nil where it follows from none. Limits bound it and all that
	// follows from it; nil is no limit. Class chooses limits that its package does not say.
	Lineage *Lineage `json:"lineage,omitempty"`
	Limits  *Limits  `json:"limits,omitempty"`
	Class   string   `json:"class,omitempty"`
	// Classified is the class that the source did not name, and what named it: medium/rule 1, the first
	// rule of the fleet, or medium/model.
	Classified string `json:"classified,omitempty"`
	// Meter estimates the tokens of the package, where a limit of tokens bounds the handoff.
	Meter int64 `json:"meter,omitempty"`
	// Trace is the span that this handoff follows from; nil where its trace
	// begins with it.
	Trace *TraceContext `json:"trace,omitempty"`
	// OnOpen is what becomes of it where the breaker of its agent is open; empty is refuse.
	OnOpen OnOpen `json:"on_open,omitempty"`
	// OnUnknown is what becomes of it where no agent has the name or the capability; empty is refuse.
	OnUnknown OnOpen `json:"on_unknown,omitempty"`
	// RouteBy is how its agent is chosen, where its package says it. Ranked are the agents that may
	// have it where its target does not, and no capability is named.
	RouteBy RouteBy  `json:"route_by,omitempty"`
	Ranked  []string `json:"ranked,omitempty"`
	// Variant is the experiment that it is in, and the variant that fell to it: experiment/variant.
	Variant string `json:"variant,omitempty"`
	// Bids are those of the package. CallOf is the handoff that this one, a call, asks a bid for.
	Bids   *Bids  `json:"bids,omitempty"`
	CallOf string `json:"call_of,omitempty"`
	// Deciders may still decide after a denial, in this order.
	Deciders []string `json:"deciders,omitempty"`
	// Autonomy is that of the package, without its deciders.
	Autonomy *AutonomyBudget `json:"autonomy,omitempty"`
	// Approval is that of the package, without its question.
	Approval *Approval `json:"approval,omitempty"`
	// Workspace is the workflow that it has a place in, and Locks are what it declares.
	Workspace string `json:"workspace,omitempty"`
	Locks     *Locks `json:"locks,omitempty"`
	// Overrides are kept so that the policy can be resolved anew when the
	// handoff goes to another agent.
	Overrides PolicyOverrides `json:"overrides,omitzero"`
}

// Aggregate is what makes a handoff a group: how its members' ends become its
// own. The members are its children, with the ordinals 0 to Size-1.
type Aggregate struct {
	Size int         `json:"size"`
	Mode Aggregation `json:"mode"`
	// Counted are the members whose ends count; empty is all of them.
	Counted Bits `json:"counted,omitempty"`
	// CancelRest ends the other members once the outcome is certain.
	CancelRest bool `json:"cancel_rest,omitempty"`
}

// Routing is why an agent was chosen, kept for later questions.
type Routing struct {
	Revision   uint64      `json:"revision"` // of the directory that was seen
	Candidates []Candidate `json:"candidates,omitempty"`
	Excluded   []string    `json:"excluded,omitempty"`
	Choice     string      `json:"choice"`
	Warnings   []string    `json:"warnings,omitempty"` // a partial match, say
}

// Candidate is an agent that was looked at, and how well it fits (0 to 1).
type Candidate struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"`
	Live  int     `json:"live_holders"`
	Busy  int     `json:"busy_slots"`
}

// Facts are what the words of a reason are made of. Which are set depends on its code.
type Facts struct {
	Agent string `json:"agent,omitempty"` // that refused, asked, was absent, …
	// Causes are the codes of the reasons that led to this one, the first first.
	Causes  []string `json:"causes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Limit   int      `json:"limit,omitempty"`    // of the count
	Budget  string   `json:"budget,omitempty"`   // that has run out: max_tokens or max_cost_micros
	LimitMS int64    `json:"limit_ms,omitempty"` // of a clock
	// Of a group: Count of its Limit members succeeded.
	Failed    int         `json:"failed,omitempty"` // did not succeed
	Cancelled int         `json:"cancelled,omitempty"`
	Mode      Aggregation `json:"mode,omitempty"`
	// Unfinished are the ordinals of the members that had not ended when its time was over.
	Unfinished []int `json:"unfinished,omitempty"`
}

// Outcome is how a closed handoff ended.
type Outcome string

const (
	OutcomeSuccess    Outcome = "success"
	OutcomePartial    Outcome = "partial"
	OutcomeFailed     Outcome = "failed"
	OutcomeTimeout    Outcome = "timeout"
	OutcomeRejected   Outcome = "rejected"
	OutcomeCancelled  Outcome = "cancelled"
	OutcomeRolledBack Outcome = "rolled_back"
)
