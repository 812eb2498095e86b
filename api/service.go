package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Config configures a Service. The zero value is the default.
type Config struct {
	// KeyRequired refuses packages without a key. A gateway sets it if an answer may be
	// lost on its way: only a submission with a key may be repeated.
	KeyRequired bool
	// Pause, if not nil, runs each pause of a Wait. A gateway that bounds its concurrent
	// requests admits others meanwhile. The context that it gives to pause ends the wait.
	Pause func(ctx context.Context, pause func(ctx context.Context))
	// RereadInterval is how often a Wait reads the head without a hint: hints may get
	// lost. Default 1.5 s.
	RereadInterval time.Duration
	// CountOn, if not nil, runs before each Claim. The turns of lanes are counted in the
	// process that pulls; one that pulls once has to take the count up from the engine.
	CountOn func(ctx context.Context, agent string) error
	// Index answers questions that are not about one ticket. Default: the index that serves
	// over the broker's engine.
	Index ask.Answers
}

const rereadIntervalDefault = 1500 * time.Millisecond

// Service implements all operations over a broker. It is safe for concurrent use.
type Service struct {
	b   *broker.Broker
	cfg Config
}

// New returns the service of a broker, which the caller closes.
func New(b *broker.Broker, cfg Config) *Service {
	if cfg.Pause == nil {
		cfg.Pause = func(ctx context.Context, pause func(context.Context)) { pause(ctx) }
	}
	cfg.RereadInterval = cmp.Or(cfg.RereadInterval, rereadIntervalDefault)
	if cfg.CountOn == nil {
		cfg.CountOn = func(context.Context, string) error { return nil }
	}
	if cfg.Index == nil {
		cfg.Index = ask.Client{Asker: b}
	}
	return &Service{b: b, cfg: cfg}
}

// As returns the operations on behalf of a caller.
func (s *Service) As(c Caller) *Session { return &Session{s: s, caller: c} }

// Session is a Service on behalf of one caller. It is safe for concurrent use.
type Session struct {
	s      *Service
	caller Caller
}

var (
	_ Source     = (*Session)(nil)
	_ Holder     = (*Session)(nil)
	_ Directory  = (*Session)(nil)
	_ Reader     = (*Session)(nil)
	_ Operator   = (*Session)(nil)
	_ Workspaces = (*Session)(nil)
	_ Approver   = (*Session)(nil)
	_ Sharer     = (*Session)(nil)
	_ Decider    = (*Session)(nil)
)

// may refuses a caller that has none of an operation's roles.
func (c *Session) may(operation string) error {
	if roles := rolesOf[operation]; !c.caller.has(roles) {
		return forbidden("role", "%s needs the role %v", operation, roles)
	}
	return nil
}

// find checks the role for an operation and reads the handoff that it is about. One that
// the caller may not see is not found, in the same words as one that is not there.
func (c *Session) find(ctx context.Context, operation, ticket string) (protocol.State, error) {
	if err := c.may(operation); err != nil {
		return protocol.State{}, err
	}
	return c.visible(ctx, ticket)
}

func (c *Session) visible(ctx context.Context, ticket string) (protocol.State, error) {
	ticket, err := protocol.ParseTicket(ticket)
	if err != nil {
		return protocol.State{}, err
	}
	state, err := c.s.b.Status(ctx, ticket)
	if c.caller.seesAll() {
		return state, err
	}
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		return protocol.State{}, hidden(ticket)
	}
	if err != nil || c.caller.concerns(state) {
		return state, err
	}
	if asked, err := c.mayAnswer(ctx, state); asked || err != nil {
		return state, err
	}
	if state.Parent != "" && state.N > 0 {
		parent, err := c.s.b.Status(ctx, state.Parent)
		if err == nil && ticket == parent.ChildTicket(state.N-1) && c.caller.concerns(parent) {
			return state, nil
		}
		if errors.Is(err, broker.ErrUnreachable) {
			return protocol.State{}, err
		}
	}
	return protocol.State{}, hidden(ticket)
}

// mayAnswer reports whether the core lets one of the caller's names answer what a handoff asks: as
// an authority above those that it concerns.
func (c *Session) mayAnswer(ctx context.Context, state protocol.State) (bool, error) {
	if lifecycle.QuestionOf(state).Kind == lifecycle.AsksNothing {
		return false, nil
	}
	directory, err := c.s.b.Directory(ctx)
	if err != nil {
		return false, err
	}
	may := func(name string) bool { return lifecycle.MayAnswer(state, name, directory) == nil }
	return slices.ContainsFunc(c.caller.Agents, may) || slices.ContainsFunc(c.caller.Sources, may), nil
}

func hidden(ticket string) error {
	return protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff that you may see has the ticket %s", ticket)
}

// locate is find for a caller that needs no more than the ticket: nothing is read for a
// caller that sees every handoff.
func (c *Session) locate(ctx context.Context, operation, ticket string) (string, error) {
	if err := c.may(operation); err != nil {
		return "", err
	}
	if c.caller.seesAll() {
		return protocol.ParseTicket(ticket)
	}
	state, err := c.visible(ctx, ticket)
	return state.Ticket, err
}

// own is locate for an act of the source's, or of an operator's.
func (c *Session) own(ctx context.Context, operation, ticket string) (string, error) {
	if err := c.may(operation); err != nil {
		return "", err
	}
	if c.caller.has(RoleOperator) {
		return protocol.ParseTicket(ticket)
	}
	state, err := c.visible(ctx, ticket)
	if err == nil && !c.caller.speaksFor(state.Source) {
		err = forbidden("ticket", "%s is a handoff of %s, and not of %s", state.Ticket, state.Source, c.caller.Name)
	}
	return state.Ticket, err
}
