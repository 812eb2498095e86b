package protocol

// The events of a call for bids: of the handoff that is to be done, and of the calls.
const (
	EventAwarded     EventType = "awarded"
	EventUnawarded   EventType = "unawarded"
	EventBidAnswered EventType = "bid_answered"
)

var bidEvents = []func() Event{empty[Awarded], empty[Unawarded], empty[BidAnswered]}

// Awarded says which agent gets the handoff, by the bids that were made: the agent of the first.
type Awarded struct {
	Meta
	AwardTerms
}

func (*Awarded) EventType() EventType { return EventAwarded }

// Unawarded says that no agent gets the handoff by its bid: there are too few.
type Unawarded struct {
	Meta
	AwardTerms
}

func (*Unawarded) EventType() EventType { return EventUnawarded }

// AwardTerms are the bids for a handoff, as they were compared.
type AwardTerms struct {
	Bids []AwardedBid `json:"bids,omitempty"` // the best first
	// Refused are the agents that were asked and made no bid, or one that cannot be read.
	Refused []string `json:"refused,omitempty" redact:"-"`
}

// AwardedBid is a bid, and how good it is.
type AwardedBid struct {
	Agent string  `json:"agent" redact:"-"`
	Score float64 `json:"score"` // 0 to 1
	Bid   Bid     `json:"bid"`
}

// BidAnswered tells the agent that made a bid what has become of it. It stands in the call.
type BidAnswered struct {
	Meta
	Answer BidAnswer `json:"bid_answer" redact:"-"`
	Agent  string    `json:"agent,omitempty" redact:"-"` // that gets the handoff
}

func (*BidAnswered) EventType() EventType { return EventBidAnswered }
