package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Config configures a Service. The zero value is the default.
type Config struct {
	// KeyRequired refuses packages without a key. A gateway sets it if an answer may be lost on the
	// network: only a submission with a key may be repeated.
	KeyRequired bool
	// Remote marks the leases of its claims as those of a gateway, for a command line.
	Remote bool
	// Gateway is the name of a gateway in the leases of its claims, by which a client finds it again:
	// it has them in its memory.
	Gateway string
	// Profiles is the rule by which agents register themselves; "" is ProfilesNew.
	Profiles Profiles
	// LeaseMS is the lease that workers have by default, for the answer to Register; 0 is none.
	LeaseMS int64
	// Pause, if not nil, runs each pause of a Wait. A gateway that bounds its concurrent requests
	// admits others meanwhile. The context that it passes to pause ends the wait.
	Pause func(ctx context.Context, pause func(ctx context.Context))
	// RereadInterval is the interval at which a Wait reads the head if it gets no hint, because
	// hints may be lost. Default 1.5 s.
	RereadInterval time.Duration
	// CountOn, if not nil, runs before each Claim. The turns of lanes are counted in the process
	// that pulls; a process that pulls once reads the count from the engine.
	CountOn func(ctx context.Context, agent string) error
	// Claims is how many claims the service keeps, so that a report by a lease reads nothing.
	// Default 1,024; a report on another claim costs two reads. Those of workers in this process
	// are kept in addition.
	Claims int
	// Index answers questions that are not about one ticket. Default: the index that serves over
	// the broker's engine.
	Index ask.Answers
}

const rereadIntervalDefault = 1500 * time.Millisecond

// Service implements all operations over a broker. It is safe for concurrent use.
type Service struct {
	b      *broker.Broker
	cfg    Config
	claims claims
	hub    hub
	queues sync.Map // of the agents whose queues exist
}

// New returns the service of a broker, which the caller closes.
func New(b *broker.Broker, cfg Config) *Service {
	if cfg.Pause == nil {
		cfg.Pause = func(ctx context.Context, pause func(context.Context)) { pause(ctx) }
	}
	cfg.Claims = cmp.Or(cfg.Claims, claimsDefault)
	cfg.RereadInterval = cmp.Or(cfg.RereadInterval, rereadIntervalDefault)
	if cfg.CountOn == nil {
		cfg.CountOn = func(context.Context, string) error { return nil }
	}
	if cfg.Index == nil {
		cfg.Index = ask.Client{Asker: b}
	}
	return &Service{b: b, cfg: cfg}
}

// Direct returns the operations of a program inside of the engine's account, such as a worker.
func Direct(b *broker.Broker, name string) *Session { return New(b, Config{}).As(Local(name)) }

// As returns the operations on behalf of a caller.
func (s *Service) As(c Caller) *Session { return &Session{s: s, caller: c} }

// Session is a Service on behalf of one caller. It is safe for concurrent use.
type Session struct {
	s      *Service
	caller Caller
}

var _ AgentOperations = (*Session)(nil)

// unless calls do if there is no error yet.
func unless[A any](err error, do func() (A, error)) (answer A, _ error) {
	if err != nil {
		return answer, err
	}
	return do()
}

// allowed calls do for a caller that has a role for the operation.
func allowed[A any](ctx context.Context, c *Session, operation string, do func(context.Context) (A, error)) (A, error) {
	return unless(c.may(operation), func() (A, error) { return do(ctx) })
}

// may refuses a caller that has none of an operation's roles.
func (c *Session) may(operation string) error {
	if roles := operationOf[operation].Roles; !c.caller.has(roles) {
		return forbidden("role", "%s needs the role %v", operation, roles)
	}
	return nil
}

// find checks the role for an operation and reads its handoff. A handoff that the caller may not
// see gets the same error as one that does not exist.
func (c *Session) find(ctx context.Context, operation, ticket string) (protocol.State, error) {
	return unless(c.may(operation), func() (protocol.State, error) { return c.visible(ctx, ticket) })
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

// mayAnswer reports whether the core allows one of the caller's names to answer the handoff's
// question as an authority above the agents concerned.
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

// locate is like find, but returns only the ticket: it reads nothing for a caller that sees every
// handoff.
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

// own is like locate, for an operation that needs the source or an operator.
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

// Roles is a set of roles.
type Roles uint8

const (
	// RoleReader sees the handoffs that concern the caller's agents and sources, or all handoffs if
	// the caller has neither. It sees every agent.
	RoleReader Roles = 1 << iota
	// RoleSubmitter submits as each of the caller's sources, and sees the handoffs that concern them.
	// It cancels and answers the handoffs that they submitted.
	RoleSubmitter
	// RoleOperator sees every handoff and intervenes in it.
	RoleOperator
	// RoleAdmin is an operator who also submits as any source, works as any agent, and changes
	// agents.
	RoleAdmin
	// RoleWorker claims and reports as each of the caller's agents.
	RoleWorker
)

var roleNames = []string{"reader", "submitter", "operator", "admin", "worker"}

// String names the roles of the set.
func (r Roles) String() string {
	var names []string
	for i, name := range roleNames {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// implied adds the roles that a role includes.
func (r Roles) implied() Roles {
	if r&RoleAdmin != 0 {
		r |= RoleOperator | RoleSubmitter | RoleWorker
	}
	if r&(RoleOperator|RoleSubmitter) != 0 {
		r |= RoleReader
	}
	return r
}

// Caller identifies the caller of operations, as authenticated by a gateway.
type Caller struct {
	// Name is recorded with the caller's acts. It is the source of packages that name none.
	Name  string
	Roles Roles
	// Sources are the names that a submitter may use as source.
	Sources []string
	// Agents are the agents that a reader reads for and a worker works as.
	Agents []string
}

// Local returns the caller of a program inside of the engine's account, which may do everything.
func Local(name string) Caller { return Caller{Name: name, Roles: RoleAdmin} }

// Agent returns the caller of a program that speaks for one agent: it submits and works as the
// agent, and sees the handoffs that concern it.
func Agent(name string) Caller {
	return Caller{Name: name, Roles: RoleReader | RoleSubmitter | RoleWorker, Sources: []string{name}, Agents: []string{name}}
}

func (c *Caller) has(any Roles) bool { return c.Roles.implied()&any != 0 }

// May reports whether the caller has a role for an operation. The operation may refuse it for other
// reasons.
func (c *Caller) May(operation string) bool { return c.has(operationOf[operation].Roles) }

// Scope narrows a filter to handoffs that the caller may list; a caller that sees all needs none.
func (c *Caller) Scope(f ask.Filter) ask.Filter {
	switch {
	case c.seesAll():
	case len(c.Agents) > 0:
		f.Agent = c.Agents
	default:
		f.Source = c.Sources
	}
	return f
}

// Inboxes returns the names whose inboxes the caller reads, its own first.
func (c *Caller) Inboxes() []string {
	names := slices.Concat(c.Agents, c.Sources)
	if c.seesAll() {
		names = append(names, c.Name, protocol.Human)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// speaksFor reports whether a package, or an act on a handoff, may have this source.
func (c *Caller) speaksFor(source string) bool {
	return c.has(RoleAdmin) || c.has(RoleSubmitter) && slices.Contains(c.Sources, source)
}

// worksAs reports whether the caller may hold handoffs of an agent.
func (c *Caller) worksAs(agent string) bool {
	return c.has(RoleAdmin) || c.has(RoleWorker) && slices.Contains(c.Agents, agent)
}

// seesAll reports whether the caller may see every handoff.
func (c *Caller) seesAll() bool {
	return c.has(RoleOperator) || c.has(RoleReader) && len(c.Sources) == 0 && len(c.Agents) == 0
}

// isNamed reports whether a name is one of the caller's.
func (c *Caller) isNamed(name string) bool {
	return slices.Contains(c.Sources, name) || slices.Contains(c.Agents, name)
}

// concerns reports whether a handoff concerns the caller: one of its names is the source, the
// target, the agent that has or had it last, or the approver.
func (c *Caller) concerns(s protocol.State) bool {
	return c.isNamed(s.Source) || c.isNamed(s.Agent) || c.isNamed(s.Target.Agent) || s.Gate != nil && s.Gate.Approver != "" && c.isNamed(s.Gate.Approver)
}

// CodeFailed is the code of an internal error.
const CodeFailed protocol.Code = "error"

// ErrWaitEnded is the error of Wait if Config.Pause ended the wait before ctx did.
var ErrWaitEnded = errors.New("the wait was ended")

// LateResultError reports a result that came after the lease was lost and does not count.
type LateResultError struct {
	Lost error // broker.ErrLeaseLost, wrapped
	// Unkept is the reason why the result could not be stored with its handoff; nil if it was
	// stored.
	Unkept error
}

func (e *LateResultError) Error() string {
	if e.Unkept == nil {
		return fmt.Sprintf("%v; the result was kept", e.Lost)
	}
	return fmt.Sprintf("%v; the result could not be kept either: %v", e.Lost, e.Unkept)
}

func (e *LateResultError) Unwrap() []error { return []error{e.Lost, e.Unkept} }

// Refusal returns the error for the caller. internal reports a fault of the service or its engine,
// whose details belong in its log and are not for the caller.
func Refusal(err error) (refusal *protocol.Error, internal bool) {
	var refused *protocol.Error
	var late *LateResultError
	switch {
	case errors.As(err, &late) && late.Unkept == nil:
		return &protocol.Error{Code: protocol.CodeLeaseLost, Field: lateField, Message: late.Error(), Clock: broker.ClockOf(err)}, false
	case errors.As(err, &refused):
		return refused, false
	case errors.Is(err, broker.ErrLeaseLost):
		refused = protocol.Errorf(protocol.CodeLeaseLost, "lease", "is lost: the handoff is closed, or another holder's by now; nothing was changed")
		if refused.Clock = broker.ClockOf(err); refused.Clock != "" {
			refused.Message = "is lost: " + broker.LostTo(refused.Clock).Error() + "; nothing was changed"
		}
		return refused, false
	case errors.Is(err, broker.ErrOfferGone):
		return protocol.Errorf(protocol.CodeGone, "offer", "is over, or another holder's by now; pull the next one"), false
	case errors.Is(err, lifecycle.ErrStale), errors.Is(err, lifecycle.ErrIllegal):
		return protocol.Errorf(protocol.CodeIllegal, "lease", "the handoff is in a phase that does not allow this"), false
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeNotFound, "", "is not there"), false
	case errors.Is(err, broker.ErrNoAnswer):
		return protocol.Errorf(protocol.CodeUnreachable, "", "no index answers, and this needs one; ask again when one runs"), false
	case errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeUnreachable, "", "the gateway did not reach the engine in time; ask again"), true
	}
	return protocol.Errorf(CodeFailed, "", "the gateway failed; its log has the reason"), true
}

// ErrorFrom returns the error of a refusal that came from a gateway, as a Session returns it.
func ErrorFrom(e *protocol.Error) error {
	switch {
	case e.Code == protocol.CodeLeaseLost && e.Field == lateField:
		return &LateResultError{Lost: broker.LostTo(e.Clock)}
	case e.Code == protocol.CodeLeaseLost:
		return fmt.Errorf("%w (%s)", broker.LostTo(e.Clock), e.Message)
	case e.Code == protocol.CodeGone:
		return fmt.Errorf("%w (%s)", broker.ErrOfferGone, e.Message)
	case e.Code == protocol.CodeUnreachable:
		return fmt.Errorf("%w through the gateway: %s", broker.ErrUnreachable, e.Message)
	case e.Code == CodeFailed:
		return errors.New(e.Message)
	}
	return e
}

// lateField is the field of the refusal of a late result that was kept.
const lateField = "result"

func invalid(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
}

func forbidden(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeForbidden, field, format, args...)
}

// inField names the field of a refusal.
func inField(field string, err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Field = field
	return &named
}

// Approver decides on handoffs that wait for an approval.
type Approver interface {
	// Approve allows the agent of a gate to have the handoff. The caller must be the approver, an
	// agent above it, or a person. Others are refused (CodeForbidden), and so are the source and
	// the agent of the gate.
	Approve(ctx context.Context, verdict Verdict) (protocol.State, error)
	// Deny ends a handoff that waits for an approval. The verdict needs a reason.
	Deny(ctx context.Context, verdict Verdict) (protocol.State, error)
	// Approvals returns the handoffs that wait for an approval by the caller, the oldest change
	// first. Without an index it reads the heads of all handoffs for an operator; for other callers
	// the error is broker.ErrNoAnswer.
	Approvals(ctx context.Context) ([]protocol.State, error)
}

// Verdict is an approver's decision on a handoff.
type Verdict struct {
	Ticket string `json:"ticket"`
	// Agent is the agent of the question. If the handoff is for another agent by now, the verdict
	// is a conflict. Empty means the agent that the handoff is for now.
	Agent string `json:"agent,omitempty"`
	// Any approves every agent, so that a reroute needs no further approval.
	Any bool `json:"any,omitempty"`
	// Reason is the reason of a denial, or a comment.
	Reason string `json:"reason,omitempty"`
}

// Approve implements Approver.
func (c *Session) Approve(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.decide(ctx, "Approve", v, c.s.b.Approve)
}

// Deny implements Approver.
func (c *Session) Deny(ctx context.Context, v Verdict) (protocol.State, error) {
	return c.decide(ctx, "Deny", v, c.s.b.Deny)
}

// decide gives a verdict on a handoff that the caller may see. The core decides whether the caller
// may give it.
func (c *Session) decide(ctx context.Context, operation string, v Verdict,
	decide func(context.Context, string, broker.ApprovalAnswer) (protocol.State, error)) (protocol.State, error) {
	return readOf(ctx, c, operation, v.Ticket, func(ctx context.Context, ticket string) (protocol.State, error) {
		return decide(ctx, ticket, broker.ApprovalAnswer{By: c.caller.Name, Agent: v.Agent, Any: v.Any, Reason: v.Reason})
	})
}

// Approvals implements Approver.
func (c *Session) Approvals(ctx context.Context) ([]protocol.State, error) {
	if err := c.may("Approvals"); err != nil {
		return nil, err
	}
	waiting, err := ask.Inbox(ctx, c.s.b, c.s.cfg.Index, c.caller.Name, c.caller.seesAll(), 0)
	var states []protocol.State
	for _, w := range waiting {
		if w.Why == lifecycle.InboxApproval {
			states = append(states, w.State)
		}
	}
	return states, err
}
