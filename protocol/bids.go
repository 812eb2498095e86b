package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"
)

// A call for bids: before a package for a capability is offered, some of the agents with that
// capability estimate its cost. Each is asked by a separate handoff, the call, whose result is the
// bid. The agent with the best bid gets the offer, and the others are informed.

// Bids makes a package for a capability go to the agent with the best bid.
type Bids struct {
	// WindowMS is bidWindowDefaultMS if absent.
	WindowMS int64 `json:"window_ms,omitempty" flag:"bid-window" doc:"how long they may take to bid, 100ms to 1h (default 5s)"`
	// Most is BiddersDefault if absent.
	Most int `json:"most,omitempty" flag:"bid-most" doc:"ask at most {N} agents"`
	// Least is the required number of bids; absent is 1. With fewer, the policy on_no_taker decides.
	Least   int         `json:"least,omitempty" flag:"bid-least" doc:"with fewer than {N} bids none of them wins; on_no_taker then decides"`
	Weights *BidWeights `json:"weights,omitempty"` // absent is 1 for each
}

// BidWeights are the weights of the parts of a bid, each from 0 to BidWeightMax.
type BidWeights struct {
	Cost       float64 `json:"cost,omitempty"`
	ETA        float64 `json:"eta,omitempty"`
	Confidence float64 `json:"confidence,omitempty"`
}

// Bid is the price and the terms of an agent for the work: the body of a call's result. A missing
// part counts as the worst, if other bids have it.
type Bid struct {
	CostMicros *int64   `json:"cost_micros,omitempty" flag:"cost" doc:"the cost of the work, as 0.03"` // millionths of a unit of cost
	ETAMS      *int64   `json:"eta_ms,omitempty" flag:"eta" doc:"from the award to the result"`
	Confidence *float64 `json:"confidence,omitempty" flag:"confidence" doc:"how sure it is to succeed, {0 to 1}"`
	ValidMS    int64    `json:"valid_ms,omitempty" flag:"valid" doc:"how long the bid is valid after the award (default: until the deadline)"`
	// Conditions are in words. They are redacted with the result of the call.
	Conditions []string `json:"conditions,omitempty" redact:"-" flag:"condition,,each" doc:"on {WHAT} the bid rests, in words (repeatable)"`
}

// Bounds of bids.
const (
	bidWindowDefaultMS = 5_000
	bidWindowMinMS     = 100
	BidWindowMaxMS     = 3_600_000
	BiddersDefault     = 5
	BiddersMax         = 32
	BidWeightMax       = 100
	// bidConditionsMax is how many conditions a bid has, and bidConditionBytesMax the size of the
	// longest.
	bidConditionsMax     = 8
	bidConditionBytesMax = 512
	// bidBytesMax is the largest bid, in bytes of JSON.
	bidBytesMax = 8 << 10
	// callDescriptionBytesMax is how much of the task's description a call contains.
	callDescriptionBytesMax = 4 << 10
)

// Window returns the time to bid.
func (b *Bids) Window() time.Duration {
	if b.WindowMS > 0 {
		return time.Duration(b.WindowMS) * time.Millisecond
	}
	return bidWindowDefaultMS * time.Millisecond
}

// Bidders returns how many agents are asked at most.
func (b *Bids) Bidders() int {
	if b.Most > 0 {
		return b.Most
	}
	return BiddersDefault
}

// Fewest returns how many bids are required.
func (b *Bids) Fewest() int { return max(1, b.Least) }

// Weighs returns the weights of the parts of a bid.
func (b *Bids) Weighs() BidWeights {
	if b.Weights == nil {
		return BidWeights{1, 1, 1}
	}
	return *b.Weights
}

func (b *Bids) validate(target Target, members int) *Error {
	if b == nil {
		return nil
	}
	switch {
	case target.Agent != "":
		return Errorf(CodeConflict, "bids", "do not go with target.agent: one agent that is named has no others to bid against; name a capability")
	case len(target.Agents) > 0 || members > 0:
		return Errorf(CodeConflict, "bids", "do not go with a group, all of whose members get the work; name a capability")
	case target.Capability == "":
		return Errorf(CodeConflict, "bids", "need target.capability: the agents that have it are asked for bids")
	}
	return cmp.Or(
		zeroOrBetween("bids.window_ms", b.WindowMS, bidWindowMinMS, BidWindowMaxMS),
		zeroOrBetween("bids.most", b.Most, 1, BiddersMax),
		zeroOrBetween("bids.least", b.Least, 1, int64(b.Bidders())),
		b.Weights.validate(),
	)
}

func (w *BidWeights) validate() *Error {
	if w == nil {
		return nil
	}
	for _, of := range []struct {
		name  string
		value float64
	}{{"cost", w.Cost}, {"eta", w.ETA}, {"confidence", w.Confidence}} {
		if !(of.value >= 0 && of.value <= BidWeightMax) {
			return Errorf(CodeInvalid, "bids.weights."+of.name, "is %g; 0 to %d is allowed", of.value, BidWeightMax)
		}
	}
	if *w == (BidWeights{}) {
		return Errorf(CodeInvalid, "bids.weights", "are all 0, so that no bid is better than another; leave them out, or give one")
	}
	return nil
}

// Validate checks a bid. The error is a *Error that names the field.
func (b *Bid) Validate() error {
	if c := b.Confidence; c != nil && !(*c >= 0 && *c <= 1) {
		return Errorf(CodeInvalid, "confidence", "is %g; 0 to 1 is allowed", *c)
	}
	if err := cmp.Or(
		optionalBetween("cost_micros", b.CostMicros, 0, MaxCostMicrosMax),
		optionalBetween("eta_ms", b.ETAMS, 0, EstimateMaxMS),
		zeroOrBetween("valid_ms", b.ValidMS, 1, DeadlineMaxMS),
		checkList("conditions", b.Conditions, bidConditionsMax, "lists %d conditions", func(words *string) *Error { return notLonger("", *words, bidConditionBytesMax) }),
	); err != nil {
		return err
	}
	if b.CostMicros == nil && b.ETAMS == nil && b.Confidence == nil {
		return Errorf(CodeMissing, "cost_micros", "is missing: a bid has a cost_micros, an eta_ms or a confidence, or several of them")
	}
	return nil
}

// DecodeBid reads the body of a call's result. The error is a *Error that names the field.
func DecodeBid(body []byte) (Bid, error) {
	bid, err := decode[Bid](body, "bid", bidBytesMax)
	if err != nil {
		return Bid{}, err
	}
	return bid, bid.Validate()
}

// bidSchema is the schema of a call's result. DecodeBid checks the rest.
const bidSchema = `{"type":"object","additionalProperties":false,"minProperties":1,"properties":{` +
	`"cost_micros":{"type":"integer","minimum":0},"eta_ms":{"type":"integer","minimum":0},` +
	`"confidence":{"type":"number","minimum":0,"maximum":1},"valid_ms":{"type":"integer","minimum":1},` +
	`"conditions":{"type":"array","maxItems":8,"items":{"type":"string","maxLength":512}}},` +
	`"anyOf":[{"required":["cost_micros"]},{"required":["eta_ms"]},{"required":["confidence"]}]}`

// Call describes the work of a call for bids: the variable callVariable of its package.
type Call struct {
	Ticket          string               `json:"ticket"` // of the handoff that the winner gets
	Capability      string               `json:"capability"`
	Required        []RequiredCapability `json:"required_capabilities,omitempty"`
	TaskType        string               `json:"task_type,omitempty"`
	Description     string               `json:"description"` // of the task, cut to 4 KiB
	Complexity      string               `json:"complexity,omitempty"`
	EstimatedTokens int64                `json:"estimated_tokens"` // of the package
	Priority        Priority             `json:"priority"`
	Deadline        Time                 `json:"deadline,omitzero"` // of the work
	BidUntil        Time                 `json:"bid_until"`
}

// ReadCall returns the description of the work from the package of a call. The error is a *Error.
func ReadCall(pkg Package) (Call, error) {
	var call Call
	told, is := pkg.Context.Variables[callVariable]
	if !is {
		return call, Errorf(CodeMissing, "context.variables."+callVariable, "is missing: the package is no call for bids")
	}
	if err := json.Unmarshal(told, &call); err != nil { // leniently: a newer version may add fields
		return call, Errorf(CodeInvalid, "context.variables."+callVariable, "is no call for bids: %v", err)
	}
	return call, nil
}

// callVariable is the variable that holds the Call in the context of its package.
const callVariable = "call"

// CallPackage returns the package that asks an agent for a bid. work is the package of the handoff
// that the winner gets, and tokens the estimate of its size. It passes ValidateOwn. It has one
// attempt, and goes to no other agent and to no person.
func CallPackage(state State, work Package, agent string, tokens int64, now Time) (Package, error) {
	call := Call{Ticket: state.Ticket, Capability: state.Target.Capability, Required: state.Requires,
		TaskType: work.Task.Type, Description: CutText(work.Task.Description, callDescriptionBytesMax), Complexity: work.Constraints.Complexity,
		EstimatedTokens: tokens, Priority: state.Priority, Deadline: state.Deadline, BidUntil: state.Bidding.Until}
	told, err := Marshal(call)
	if err != nil {
		return Package{}, err
	}
	none, once, close := 0, 1, NoTakerClose
	end := DeadlineClose
	pkg := Package{
		Type: Sequential, Source: System, Target: Target{Agent: agent}, Priority: state.Priority,
		Reason: fmt.Sprintf("call for bids for %s", state.Ticket),
		Task: Task{Type: callVariable, Description: fmt.Sprintf("Make a bid for handoff %s, which needs %s: give as JSON the cost of the work (cost_micros), its duration (eta_ms), and your confidence (confidence), or refuse. Do not do the work.\n\nThe work: %s",
			state.Ticket, state.Target.Capability, call.Description)},
		Context:      Context{Variables: map[string]json.RawMessage{callVariable: told}},
		Constraints:  Constraints{Deadline: state.Bidding.Until},
		Expectations: Expectations{OutputSchema: json.RawMessage(bidSchema)},
		Policy: PolicyOverrides{MaxAttempts: &once, MaxReroutes: &none, MaxEscalations: &none, MaxConditions: &none,
			OnNoTaker: &close, OnDeadline: &end},
	}
	pkg.Normalize(now)
	return pkg, nil
}

// Bidding is a call for bids and its result.
type Bidding struct {
	Calls []string `json:"calls"` // the asked agents, by the number of their call
	Until Time     `json:"until"`
	// AwardedAt is when the bids were compared. Winner is the agent with the best one; it is empty if
	// there were too few.
	AwardedAt Time   `json:"awarded_at,omitzero"`
	Winner    string `json:"winner,omitempty"`
	// Bids lists the received bids, best first. The next one is used if an agent does not take the
	// handoff.
	Bids []RankedBid `json:"bids,omitempty"`
}

// RankedBid is a bid with its score in the award.
type RankedBid struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"`          // 0 to 1
	Until Time    `json:"until,omitzero"` // valid until then; absent: to the deadline
}

// BidAnswer is the result of a bid for its bidder.
type BidAnswer string

// The results of a bid.
const (
	BidWon  BidAnswer = "won"  // it gets the handoff
	BidLost BidAnswer = "lost" // another agent does, or none; its bid remains valid until its end
)

// The events of a call for bids: of the handoff with the work, and of the calls.
const (
	EventAwarded     EventType = "awarded"
	EventUnawarded   EventType = "unawarded"
	EventBidAnswered EventType = "bid_answered"
)

var bidEvents = []func() Event{empty[Awarded], empty[Unawarded], empty[BidAnswered]}

// Awarded gives the handoff to the agent of the first bid.
type Awarded struct {
	Meta
	AwardTerms
}

func (*Awarded) EventType() EventType { return EventAwarded }

func (*Awarded) outline() Outline { return Outline{Gate: GateBids} }

// Unawarded records that no agent gets the handoff by its bid: there are too few.
type Unawarded struct {
	Meta
	AwardTerms
}

func (*Unawarded) EventType() EventType { return EventUnawarded }

func (*Unawarded) outline() Outline { return Outline{Gate: GateBids} }

// AwardTerms are the bids for a handoff, in the order of comparison.
type AwardTerms struct {
	Bids []AwardedBid `json:"bids,omitempty"` // best first
	// Refused lists the asked agents that made no bid, or an unreadable one.
	Refused []string `json:"refused,omitempty" redact:"-"`
}

// AwardedBid is a bid with its score.
type AwardedBid struct {
	Agent string  `json:"agent" redact:"-"`
	Score float64 `json:"score"` // 0 to 1
	Bid   Bid     `json:"bid"`
}

// BidAnswered reports the result of a bid to its agent. It is an event of the call.
type BidAnswered struct {
	Meta
	Answer BidAnswer `json:"bid_answer" redact:"-"`
	Agent  string    `json:"agent,omitempty" redact:"-"` // that gets the handoff
}

func (*BidAnswered) EventType() EventType { return EventBidAnswered }
