package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Watch selects the changes of a handoff.
type Watch struct {
	Ticket string
	// Chain goes on with the handoff that it continues as.
	Chain bool
	// After and AfterSeq are the ticket and the ledger sequence of the last change that the caller has;
	// empty if it has none.
	After    string
	AfterSeq uint64
}

// Changes calls each with the selected changes, in order, each once, as they are made. It returns the
// last state once the handoff, or its chain, has closed. An error of each ends it. A place that is
// not of the handoff, or beyond its last change, is invalid.
func (c *Session) Changes(ctx context.Context, w Watch, each func(protocol.Change) error) (protocol.State, error) {
	ticket, err := w.Ticket, c.may("History")
	if err == nil {
		ticket, err = protocol.ParseTicket(ticket)
	}
	if err == nil && w.After != "" {
		if w.After, err = protocol.ParseTicket(w.After); err != nil {
			err = inField("after", err)
		}
	}
	if err != nil {
		return protocol.State{}, err
	}
	state := &protocol.State{}
	for first, resumed := true, w.After == ""; ; first = false {
		after := uint64(0)
		if ticket == w.After {
			resumed, after = true, w.AfterSeq
		}
		if state, err = c.changesOf(ctx, ticket, first, resumed, after, each); err != nil {
			return *state, err
		}
		switch goesOn := w.Chain && lifecycle.GoesOn(*state); {
		case !goesOn && !resumed:
			return *state, protocol.Errorf(protocol.CodeInvalid, "after", "is a place of another handoff; begin without one")
		case !goesOn:
			return *state, nil
		}
		if ticket, err = c.awaitNext(ctx, state); err != nil {
			return *state, err
		}
	}
}

// changesOf is Changes for one handoff. Unless the place was found, it only reads. The state is never
// nil.
func (c *Session) changesOf(ctx context.Context, ticket string, first, resumed bool, after uint64, each func(protocol.Change) error) (*protocol.State, error) {
	read := c.read(ctx, ticket, first, 0)
	if read.err == nil && after > 0 { // the state alone does not have its sequence
		read = c.read(ctx, ticket, false, 0)
	}
	switch {
	case read.err != nil || !resumed:
		return &read.state, cmp.Or(ctx.Err(), read.err)
	case after > 0 && after > read.seq:
		return &read.state, protocol.Errorf(protocol.CodeInvalid, "after", "is beyond the last change, %d; begin without a place", read.seq)
	}
	state := &read.state
	hints, stop, err := c.s.b.Feed(ctx, ticket)
	if err != nil {
		return state, cmp.Or(ctx.Err(), err)
	}
	defer stop()
	for {
		var refused, err error // by each, and of the read
		apart(func() {
			err = c.s.b.EachChangeAfter(ctx, ticket, after, func(change protocol.Change) error {
				if refused = each(change); refused == nil {
					*state, after = change.Record.State, change.Seq
				}
				return refused
			})
		})
		switch {
		case refused != nil || ctx.Err() != nil:
			return state, cmp.Or(refused, ctx.Err())
		case err != nil && (!errors.Is(err, broker.ErrUnreachable) || errors.Is(err, broker.ErrClosed)):
			return state, err
		case err == nil && state.Closed:
			return state, nil
		}
		if err := c.s.pause(ctx, hints); err != nil {
			return state, err
		}
	}
}

// Past returns the last changes of a handoff before a sequence of the ledger, with 0 of all: at most so many,
// and whether there are earlier ones. It reads some of the ledger forwards, and of a handoff with more
// changes from a place on that it moves back until they are enough.
func (c *Session) Past(ctx context.Context, ticket string, before uint64, most int) (changes []protocol.Change, earlier bool, err error) {
	ticket, err = c.locate(ctx, "History", ticket)
	if err != nil {
		return nil, false, err
	}
	if before == 0 {
		head, err := c.s.b.Head(ctx, ticket, 0)
		if err != nil {
			return nil, false, err
		}
		before = head.Seq + 1
	}
	enough := errors.New("enough")
	var first, after uint64
	for span := uint64(most); ; span *= 4 {
		changes = nil
		err = c.s.b.EachChangeAfter(ctx, ticket, after, func(change protocol.Change) error {
			switch {
			case change.Seq >= before:
				return enough
			case len(changes) == most && after == 0:
				first = changes[0].Seq // of too many
				return enough
			case len(changes) == most:
				changes = changes[1:]
			}
			changes = append(changes, change)
			return nil
		})
		switch {
		case err != nil && !errors.Is(err, enough):
			return nil, false, err
		case first == 0, after > 0 && len(changes) == most:
			return changes, after > 0, nil
		}
		after = first
		if before > first+span {
			after = before - span
		}
	}
}

// Hint reports that a handoff has changed.
type Hint struct {
	Seq    uint64         `json:"seq"` // of the change in the ledger
	Ticket string         `json:"ticket"`
	Phase  protocol.Phase `json:"phase"`
}

// HintFilter selects hints: by all fields that have values, by any value of a field.
type HintFilter struct {
	Agent        []string `json:"agent,omitempty"` // that has the handoff, or had it before the change
	Conversation []string `json:"conversation,omitempty"`
	Workflow     []string `json:"workflow,omitempty"`
	Source       []string `json:"source,omitempty"`
	Ticket       []string `json:"ticket,omitempty"` // of the handoff, or of the one that handed it off
}

func (f *HintFilter) selects(c *protocol.Change) bool {
	s := c.Record.State
	has := func(values []string, of ...string) bool {
		return len(values) == 0 || slices.ContainsFunc(of, func(v string) bool { return slices.Contains(values, v) })
	}
	agents := []string{s.Agent}
	for _, e := range c.Record.Events {
		o := protocol.OutlineOf(e)
		agents = append(agents, o.From, o.Agent, o.To)
	}
	return has(f.Agent, agents...) && has(f.Conversation, s.ConversationID) && has(f.Workflow, s.WorkflowID) && has(f.Source, s.Source) &&
		has(f.Ticket, s.Ticket, s.Parent)
}

// hintsHeld is how many hints a subscriber may lag behind.
const hintsHeld = 256

// hub gives the changes of the ledger to its subscribers. It follows the ledger while it has any.
type hub struct {
	mu          sync.Mutex
	subscribers map[chan Hint]func(*protocol.Change) bool
	stop        func()
}

// Hints returns hints about the handoffs that the caller may see, from now on, until stop is called.
// The channel is closed if the engine did not answer, or the caller was too slow: then hints are
// missing, and the caller lists again.
func (c *Session) Hints(ctx context.Context, filter HintFilter) (hints <-chan Hint, stop func(), err error) {
	if err := c.may("List"); err != nil {
		return nil, nil, err
	}
	h := &c.s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subscribers) == 0 {
		ledger, err := c.s.b.LedgerInfo(ctx)
		if err != nil {
			return nil, nil, err
		}
		following, cancel := context.WithCancel(context.WithoutCancel(ctx))
		h.subscribers, h.stop = map[chan Hint]func(*protocol.Change) bool{}, cancel
		go h.follow(following, c.s.b, ledger.End(), h.subscribers) // ends with its last subscriber
	}
	channel, subscribers := make(chan Hint, hintsHeld), h.subscribers
	subscribers[channel] = func(change *protocol.Change) bool {
		return (c.caller.seesAll() || c.caller.concerns(change.Record.State)) && filter.selects(change)
	}
	return channel, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(subscribers, channel)
	}, nil
}

// drop ends a subscription, and with the last one the following of the ledger.
func (h *hub) drop(subscribers map[chan Hint]func(*protocol.Change) bool, channel chan Hint) {
	if subscribers[channel] == nil {
		return
	}
	delete(subscribers, channel)
	close(channel)
	if len(subscribers) == 0 {
		h.stop()
	}
}

// follow gives the entries behind a cursor to a set of subscribers. Its end ends them all.
func (h *hub) follow(ctx context.Context, b *broker.Broker, from broker.Cursor, subscribers map[chan Hint]func(*protocol.Change) bool) {
	_ = b.Tail(ctx, from, func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil { // an unreadable entry changed nothing
			return nil
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for channel, selects := range subscribers {
			if !selects(&change) {
				continue
			}
			select {
			case channel <- Hint{change.Seq, change.Record.State.Ticket, change.Record.State.Phase}:
			default:
				h.drop(subscribers, channel)
			}
		}
		return ctx.Err()
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for channel := range subscribers {
		h.drop(subscribers, channel)
	}
}

// PollMin and PollMax bound PollAfter.
const PollMin, PollMax = time.Second, 15 * time.Second

// PollAfter is the time until a client that does not wait asks again for a handoff: a tenth of that since its last
// change.
func PollAfter(s protocol.State) time.Duration {
	return max(PollMin, min(PollMax, time.Since(s.UpdatedAt)/10))
}
