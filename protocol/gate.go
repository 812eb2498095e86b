package protocol

// GateKind is what a gate waits for.
type GateKind string

const (
	GateBids      GateKind = "bids"      // agents say what they would do it for
	GateApproval  GateKind = "approval"  // of a person or an agent, that its agent may have it
	GateBudget    GateKind = "budget"    // its limits are raised
	GateBreaker   GateKind = "breaker"   // its agent works again
	GateWorkspace GateKind = "workspace" // a place, or locks, in its workspace
)

// GateKinds are all kinds, in the order in which they open: what waits for a later one has what it
// needs of the earlier ones, so that no lock, place or probe is held while a person thinks. Bids
// come first, and alone: what else an offer waits for depends on the agent that wins.
var GateKinds = []GateKind{GateBids, GateApproval, GateBudget, GateBreaker, GateWorkspace}

// GateTerms say what an offer waits for, and what is offered once that is there.
type GateTerms struct {
	Waits  []GateKind `json:"waits,omitempty" redact:"-"` // in the order of GateKinds; the first is the one that may open now
	Agent  string     `json:"agent,omitempty" redact:"-"` // that gets the offer
	Offer  string     `json:"offer,omitempty" redact:"-"` // what that offer is made for: submitted, retry, reroute, …
	Why    string     `json:"why,omitempty" redact:"text"`
	Until  Time       `json:"until,omitzero"`              // when the first of them lapses, or may be there
	Reason string     `json:"reason,omitempty" redact:"-"` // the code of the reroute that brings it to Agent
	Facts  *Facts     `json:"facts,omitempty" redact:"-"`  // of Reason
	Rules  []string   `json:"rules,omitempty" redact:"-"`  // what asks for the approval: package, source, target, or a rule of the fleet

	Approver  string          `json:"approver,omitempty" redact:"-"`
	TimeoutMS int64           `json:"timeout_ms,omitempty"` // of each approver
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty" redact:"-"`
}

// Gate stands between a handoff and its next offer (phase awaiting_approval).
type Gate struct {
	GateTerms
	Since Time `json:"since,omitzero"`
	Level int  `json:"level,omitempty"` // how often an approver has let it lapse
	// Question is the number of the question that an approver is asked.
	Question int `json:"question,omitempty"`
	// Denied is who said no, and DenyReason why: the handoff closes.
	Denied     string `json:"denied,omitempty"`
	DenyReason string `json:"deny_reason,omitempty"`
}

// ApprovalGiven is an approval, and the agent that may have the handoff by it; AnyAgent is all.
type ApprovalGiven struct {
	Agent string `json:"agent"`
	By    string `json:"by"`
	At    Time   `json:"at"`
}

// AnyAgent stands for all agents, in an approval.
const AnyAgent = "*"

// ApprovalTimeout is what follows where an approver does not answer.
type ApprovalTimeout string

const (
	ApprovalEscalate ApprovalTimeout = "escalate" // the authority above is asked, a person at last
	ApprovalClose    ApprovalTimeout = "close"    // the handoff ends
)

// First returns what a gate waits for now; empty where that is nothing.
func (g *Gate) First() GateKind {
	if g == nil || len(g.Waits) == 0 {
		return ""
	}
	return g.Waits[0]
}
