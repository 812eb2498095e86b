package api

import (
	"context"
	"encoding/json"
	"reflect"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Parts of answers that the core computes, by names that a program can write.
type (
	Matches      = lifecycle.Matches      // the agents for a task, best first
	Recommended  = lifecycle.Recommended  // an agent for a task, with its success rate
	BreakerState = lifecycle.BreakerState // of the breaker of an agent
	KeyStatus    = lifecycle.KeyStatus    // the use of a key that limits handoffs
	Impasse      = lifecycle.Impasse      // why a wait for a handoff ends before its close
)

// Source submits handoffs and follows them to their ends.
type Source interface {
	// Submit submits a package and returns the new handoff. The source of the package is the caller
	// if it names none. Submitting the same package with the same key again returns the existing
	// handoff.
	Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error)
	// Status returns the state of a handoff.
	Status(ctx context.Context, ticket string) (protocol.State, error)
	// Wait blocks until a handoff satisfies until, or ctx ends. It always returns the last state
	// that it read, with ctx's error if ctx ended first.
	Wait(ctx context.Context, ticket string, until Until) (protocol.State, error)
	// Result returns the result of a handoff, and the state it was read from. If there is no
	// result, the error is broker.ErrNotFound, and the state has the reason.
	Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error)
	// LastOfChain returns the state of the most recent handoff of a chain: the handoffs that follow
	// from one another by goto. It returns the handoff itself if that does not continue as another,
	// or the next one is not submitted yet.
	LastOfChain(ctx context.Context, ticket string) (protocol.State, error)
	// WaitChain is Wait for a chain: it returns the state of the last handoff. A handoff that
	// continues as another never satisfies until.
	WaitChain(ctx context.Context, ticket string, until Until) (protocol.State, error)
	// ChainResult is Result for the most recent handoff of a chain.
	ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error)
	// Return returns the end of a closed handoff as its source receives it: the end of the chain if
	// the return waits for that. Until then the error has CodeIllegal.
	Return(ctx context.Context, ticket string) (protocol.Return, error)
	// Context returns the whole context of a handoff. For a package by reference it reads the
	// stored context. The caller needs the right to read the package.
	Context(ctx context.Context, ticket string) (protocol.Context, error)
	// Cancel requests the end of a handoff: at once if no worker holds it, or else through its
	// holder's next heartbeat.
	Cancel(ctx context.Context, request Cancel) (protocol.State, error)
	// Answer gives a handoff what it needs, or denies it. The answer names its question
	// (lifecycle.QuestionOf); an answer to an earlier question is refused (CodeConflict). The
	// caller is recorded as its author. lifecycle.MayAnswer decides whether the caller may answer.
	Answer(ctx context.Context, ticket string, answer protocol.Answer) (protocol.State, error)
}

// Cancel is the request to end a handoff.
type Cancel struct {
	Ticket string `json:"ticket"`
	Reason string `json:"reason,omitempty" flag:"reason" doc:"why"`
	// Children also cancels its children, even if the handoff itself is closed.
	Children bool `json:"children,omitempty" flag:"children" doc:"cancel the handoffs that it handed off, too"`
}

// Reroute is the request to offer a handoff to another agent.
type Reroute struct {
	Ticket string `json:"ticket"`
	To     string `json:"to" flag:"to" doc:"the {AGENT} that gets it; required"`
	Reason string `json:"reason,omitempty" flag:"reason" doc:"why"`
	// Deadline, if not zero, is the new deadline.
	Deadline time.Time `json:"deadline,omitzero"`
}

// Redrive is the request to submit a handoff again.
type Redrive struct {
	Ticket string `json:"ticket"`
	// To, if not empty, is the new target.
	To string `json:"to,omitempty"`
	// Again also offers it to the agents that refused it.
	Again bool `json:"again,omitempty"`
}

// Until is the condition that a caller waits for.
type Until string

const (
	// UntilClosed waits for the end. The empty Until means the same.
	UntilClosed Until = "closed"
	// UntilEnded waits for the end that the source or the parent receives: the end of the chain if
	// the return waits for that.
	UntilEnded Until = "ended"
	// UntilAccepted waits until an agent has accepted, or the end if that comes first.
	UntilAccepted Until = "accepted"
	// UntilAsked waits until an agent asks a question, or the end if that comes first.
	UntilAsked Until = "asked"
)

// Ready reports whether a handoff satisfies u. ok is false for an unknown Until.
func (u Until) Ready(s protocol.State) (ready, ok bool) {
	switch u {
	case "", UntilClosed:
		return s.Closed, true
	case UntilEnded:
		return lifecycle.HasEnded(s), true
	case UntilAccepted:
		return broker.Acknowledged(s), true
	case UntilAsked:
		return s.Closed || s.Phase == protocol.Conditional && s.Conditions != nil, true
	}
	return false, false
}

// satisfied reports whether a handoff satisfies a known u.
func (u Until) satisfied(s *protocol.State) bool {
	ready, _ := u.Ready(*s)
	return ready
}

func (u Until) check() error {
	if _, ok := u.Ready(protocol.State{}); !ok {
		return protocol.Errorf(protocol.CodeInvalid, "until", "is %q, must be %s, %s, %s or %s", protocol.CutText(string(u), 64), UntilClosed, UntilEnded, UntilAccepted, UntilAsked)
	}
	return nil
}

// Limits of every gateway.
const (
	// WaitMax bounds the wait of one request at a gateway. A client that waits longer repeats the
	// request.
	WaitMax = 20 * time.Second
	// callBytesMax bounds requests that hold a package, a result or variables, with the rest.
	callBytesMax = protocol.PackageBytesMax + 1<<20
	// actBytesMax bounds requests that hold a ticket and a few words.
	actBytesMax = 64 << 10
)

// waitSlack is how much earlier a wait of waitLong or more may end, so that many end together, and their
// clients ask again together: to wake up for each one costs more than to serve it.
const waitSlack, waitLong = 500 * time.Millisecond, 10 * time.Second

// waitLimit checks the length of a wait, and returns how long it takes.
func waitLimit(ms int64) (time.Duration, error) {
	if ms < 0 || ms > WaitMax.Milliseconds() {
		return 0, protocol.Errorf(protocol.CodeInvalid, "wait_ms", "is %d, must be 0 to %d", ms, WaitMax.Milliseconds())
	}
	limit := time.Duration(ms) * time.Millisecond
	if limit >= waitLong {
		now := time.Now()
		limit = now.Add(limit).Truncate(waitSlack).Sub(now)
	}
	return limit, nil
}

// Repeat describes the effect of calling an operation twice.
type Repeat string

const (
	// Reads changes nothing.
	Reads Repeat = "reads"
	// ByKey has no second effect if the package has a key.
	ByKey Repeat = "by key"
	// ByNumber has no second effect if the child has a number.
	ByNumber Repeat = "by number"
	// Once has an effect each time: a repeated claim takes another handoff.
	Once Repeat = "once"
	// Harmless has no second effect: the caller gets the same state again, or a refusal.
	Harmless Repeat = "harmless"
)

// Operation describes one method of a Session. Gateways, help and documentation range over all of
// them.
type Operation struct {
	Name  string // name of the method
	Group string // the interface that has it, or other operations for the same use
	// Roles has the permitted roles; the caller needs one of them.
	Roles  Roles
	Repeat Repeat
	// RequestBytesMax bounds the request at a gateway.
	RequestBytesMax int
	// WaitMax bounds the wait of a call at a gateway; 0 means that it does not wait.
	WaitMax time.Duration
	Doc     string
	// Request and Answer are the types of the JSON of a request and its answer.
	Request, Answer reflect.Type

	call func(ctx context.Context, s *Session, request []byte) (any, error)
}

// Do performs the operation on a request in JSON and returns the answer, which is to be encoded with
// protocol.Marshal. An unknown, repeated or missing field is refused by its name.
func (op *Operation) Do(ctx context.Context, s *Session, request []byte) (any, error) {
	if len(request) > op.RequestBytesMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "request", "%s", protocol.OverSize(len(request), op.RequestBytesMax))
	}
	return op.call(ctx, s, request)
}

// OperationOf returns the operation of a name; nil if there is none.
func OperationOf(name string) *Operation { return operationOf[name] }

var operationOf = map[string]*Operation{}

func init() {
	for i := range Operations {
		operationOf[Operations[i].Name] = &Operations[i]
	}
}

// row makes an operation of a method, or of a function that adapts one to its request.
func row[Q, A any](name, of string, roles Roles, repeat Repeat, bytesMax int, wait time.Duration, doc string, do func(*Session, context.Context, Q) (A, error)) Operation {
	return Operation{name, of, roles, repeat, bytesMax, wait, doc, reflect.TypeFor[Q](), reflect.TypeFor[A](),
		func(ctx context.Context, s *Session, body []byte) (any, error) {
			var request Q
			if err := protocol.DecodeStrict(body, "request", bytesMax, &request); err != nil {
				return nil, err
			}
			return do(s, ctx, request)
		}}
}

// Operations lists all operations.
var Operations = []Operation{
	row("Submit", "Source", RoleSubmitter, ByKey, callBytesMax, 0, "hand a package to an agent, a capability or a group", submit),
	row("Status", "Source", RoleReader, Reads, actBytesMax, 0, "read the state of a handoff", one[ticketRequest]((*Session).Status)),
	row("Wait", "Source", RoleReader, Reads, actBytesMax, WaitMax, "wait until a handoff is closed, ended, accepted or asks", waitFor(false)),
	row("Result", "Source", RoleReader, Reads, actBytesMax, 0, "read the result of a handoff", resultOf((*Session).Result)),
	row("LastOfChain", "Source", RoleReader, Reads, actBytesMax, 0, "read the state of the most recent handoff of a chain", one[ticketRequest]((*Session).LastOfChain)),
	row("WaitChain", "Source", RoleReader, Reads, actBytesMax, WaitMax, "wait for the end of a chain, or until its last handoff is accepted or asks", waitFor(true)),
	row("ChainResult", "Source", RoleReader, Reads, actBytesMax, 0, "read the result of the most recent handoff of a chain", resultOf((*Session).ChainResult)),
	row("Return", "Source", RoleReader, Reads, actBytesMax, 0, "read the end of a closed handoff as its source gets it", one[ticketRequest]((*Session).Return)),
	row("Context", "Source", RoleReader, Reads, actBytesMax, 0, "read the whole context of a handoff, even if the package refers to it", one[ticketRequest]((*Session).Context)),
	row("Cancel", "Source", RoleSubmitter|RoleOperator, Harmless, actBytesMax, 0, "cancel a handoff", (*Session).Cancel),
	row("Approve", "Approver", RoleSubmitter|RoleOperator, Harmless, actBytesMax, 0, "approve a handoff for its agent", (*Session).Approve),
	row("Deny", "Approver", RoleSubmitter|RoleOperator, Harmless, actBytesMax, 0, "deny a handoff that waits for an approval", (*Session).Deny),
	row("Approvals", "Approver", RoleSubmitter|RoleOperator, Reads, actBytesMax, 0, "list the handoffs that wait for the caller's approval", bare((*Session).Approvals)),
	row("Answer", "Source", RoleSubmitter|RoleOperator, Harmless, callBytesMax, 0, "answer the question of a handoff, or deny it", answer),
	row("Claim", "Holder", RoleWorker, Once, actBytesMax, WaitMax, "claim the most urgent offer of an agent", claim),
	row("Register", "Workers", RoleWorker, Harmless, callBytesMax, 0, "create the queue of an agent, and its profile if it has none", register),
	row("Present", "Workers", RoleWorker, Harmless, actBytesMax, 0, "prolong the presence of a worker by its lease", (*Session).Present),
	row("Leave", "Workers", RoleWorker, Harmless, actBytesMax, 0, "end the presence of a worker", leave),
	row("ClaimMany", "Workers", RoleWorker, Once, actBytesMax, WaitMax, "claim offers for the slots of a worker", claimMany),
	row("Acknowledge", "Holder", RoleWorker, Harmless, actBytesMax, 0, "accept an offer, refuse it, or name its conditions", acknowledge),
	row("Heartbeat", "Holder", RoleWorker, Harmless, actBytesMax, 0, "keep a lease and read the changes", heartbeat),
	row("Progress", "Holder", RoleWorker, Harmless, actBytesMax, 0, "record the progress of the work", progress),
	row("Decide", "Decider", RoleWorker, Harmless, actBytesMax, 0, "record a decision made during the work", two[decideRequest]((*Session).Decide)),
	row("Spend", "Holder", RoleWorker, Harmless, actBytesMax, 0, "record the usage of the attempt so far", two[spendRequest]((*Session).Spend)),
	row("Complete", "Holder", RoleWorker, Harmless, callBytesMax, 0, "close a handoff with a result", complete),
	row("Fail", "Holder", RoleWorker, Harmless, actBytesMax, 0, "end an attempt without a result", fail),
	row("Release", "Holder", RoleWorker, Harmless, callBytesMax, 0, "release a handoff to its queue, uncharged", release),
	row("Escalate", "Holder", RoleWorker, Harmless, actBytesMax, 0, "pass a handoff to the authority above its agent", escalate),
	row("AnswerHeld", "Decider", RoleWorker, Harmless, callBytesMax, 0, "answer a handoff that was escalated to the agent", answerHeld),
	row("RollBackHeld", "Holder", RoleWorker, Harmless, callBytesMax, 0, "roll a held handoff back to its source, undone", rollBackHeld),
	row("HandOff", "Holder", RoleWorker, ByNumber, callBytesMax, 0, "hand part of the work to another agent", handOff),
	row("Await", "Holder", RoleWorker, Harmless, actBytesMax, 0, "release a handoff until its children have closed", two[awaitRequest]((*Session).Await)),
	row("Package", "Reader", RoleReader, Reads, actBytesMax, 0, "read the package of a handoff", one[ticketRequest]((*Session).Package)),
	row("History", "Reader", RoleReader, Reads, actBytesMax, 0, "read all changes of a handoff, oldest first", one[ticketRequest]((*Session).History)),
	row("Members", "Reader", RoleReader, Reads, actBytesMax, 0, "read the ends of a group's members", one[ticketRequest]((*Session).Members)),
	row("LateResults", "Reader", RoleReader, Reads, actBytesMax, 0, "read the results that came after a lease was lost", one[ticketRequest]((*Session).LateResults)),
	row("List", "Reader", RoleReader, Reads, actBytesMax, 0, "list handoffs, a page at a time", (*Session).List),
	row("Count", "Reader", RoleReader, Reads, actBytesMax, 0, "count handoffs", (*Session).Count),
	row("Figures", "Reader", RoleReader, Reads, actBytesMax, 0, "sum up handoffs: rates, durations, refusals", (*Session).Figures),
	row("Series", "Reader", RoleReader, Reads, actBytesMax, 0, "count handoffs over time", (*Session).Series),
	row("Position", "Reader", RoleReader, Reads, actBytesMax, 0, "read the position of the index in the ledger", (*Session).Position),
	row("Find", "Reader", RoleReader, Reads, actBytesMax, 0, "find the ticket that begins with a prefix", find),
	row("Family", "Reader", RoleReader, Reads, actBytesMax, 0, "list the family of a handoff", (*Session).Family),
	row("Why", "Reader", RoleReader, Reads, actBytesMax, 0, "explain why a handoff waits, and its next step", why),
	row("Agents", "Directory", RoleReader, Reads, actBytesMax, 0, "list all agents with their workers and queues", bare((*Session).Agents)),
	row("Agent", "Directory", RoleReader, Reads, actBytesMax, 0, "read one agent with its workers and its queue", one[agentRequest]((*Session).Agent)),
	row("Profile", "Directory", RoleReader, Reads, actBytesMax, 0, "read the profile of an agent", one[agentRequest]((*Session).Profile)),
	row("Holders", "Directory", RoleOperator, Reads, actBytesMax, 0, "list the workers of an agent", one[agentRequest]((*Session).Holders)),
	row("FindAgents", "Finder", RoleReader, Reads, actBytesMax, 0, "find the agents for a task by its words", two[findAgentsRequest]((*Session).FindAgents)),
	row("RecommendAgents", "Finder", RoleReader, Reads, actBytesMax, 0, "rank the agents that one may hand off to, by words and success", recommendAgents),
	row("Queues", "Directory", RoleOperator, Reads, actBytesMax, 0, "list the lanes that have offers", bare((*Session).Queues)),
	row("PutAgent", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "register an agent or replace its profile", putAgent),
	row("PauseAgent", "Directory", RoleOperator, Harmless, actBytesMax, 0, "stop an agent from taking handoffs", one[agentRequest]((*Session).PauseAgent)),
	row("ResumeAgent", "Directory", RoleOperator, Harmless, actBytesMax, 0, "let a paused agent take handoffs again", one[agentRequest]((*Session).ResumeAgent)),
	row("RemoveAgent", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "remove an agent", one[agentRequest]((*Session).RemoveAgent)),
	row("Breakers", "Breakers", RoleReader, Reads, actBytesMax, 0, "list the breakers of all agents that have one", bare((*Session).Breakers)),
	row("ResetBreaker", "Breakers", RoleOperator, Harmless, actBytesMax, 0, "close the breaker of an agent and delete its failures", one[agentRequest]((*Session).ResetBreaker)),
	row("Fleet", "Directory", RoleReader, Reads, actBytesMax, 0, "read the settings for all agents", bare((*Session).Fleet)),
	row("KeyLimits", "Directory", RoleReader, Reads, actBytesMax, 0, "list the keys with a limit, and how many are held, begin and wait under each", bare((*Session).KeyLimits)),
	row("PutFleet", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "replace the settings for all agents", (*Session).PutFleet),
	row("PutSchedule", "Schedules", RoleAdmin, Harmless, callBytesMax, 0, "create a schedule, or replace it", (*Session).PutSchedule),
	row("Schedules", "Schedules", RoleOperator, Reads, actBytesMax, 0, "list the schedules", bare((*Session).Schedules)),
	row("Schedule", "Schedules", RoleOperator, Reads, actBytesMax, 0, "read a schedule with its package", one[nameRequest]((*Session).Schedule)),
	row("PauseSchedule", "Schedules", RoleOperator, Harmless, actBytesMax, 0, "stop a schedule from firing", one[nameRequest]((*Session).PauseSchedule)),
	row("ResumeSchedule", "Schedules", RoleOperator, Harmless, actBytesMax, 0, "let a paused schedule fire again", one[nameRequest]((*Session).ResumeSchedule)),
	row("RunSchedule", "Schedules", RoleOperator, Once, actBytesMax, 0, "submit the package of a schedule now", one[nameRequest]((*Session).RunSchedule)),
	row("RemoveSchedule", "Schedules", RoleAdmin, Harmless, actBytesMax, 0, "remove a schedule", one[nameRequest]((*Session).RemoveSchedule)),
	row("SendSignal", "Signals", RoleSubmitter, ByKey, actBytesMax+protocol.SignalBytesMax, 0, "send a signal, which begins the handoffs of its rules", (*Session).SendSignal),
	row("PutRule", "Signals", RoleAdmin, Harmless, callBytesMax, 0, "create a rule, which begins a handoff for each signal of a name, or replace it", (*Session).PutRule),
	row("Rules", "Signals", RoleOperator, Reads, actBytesMax, 0, "list the rules, and count the signals that wait", bare((*Session).Rules)),
	row("Rule", "Signals", RoleOperator, Reads, actBytesMax, 0, "read a rule with its template", one[nameRequest]((*Session).Rule)),
	row("PauseRule", "Signals", RoleOperator, Harmless, actBytesMax, 0, "stop a rule from beginning handoffs", one[nameRequest]((*Session).PauseRule)),
	row("ResumeRule", "Signals", RoleOperator, Harmless, actBytesMax, 0, "let a paused rule begin handoffs again", one[nameRequest]((*Session).ResumeRule)),
	row("RemoveRule", "Signals", RoleAdmin, Harmless, actBytesMax, 0, "remove a rule", one[nameRequest]((*Session).RemoveRule)),
	row("OpenWorkspace", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "open a workflow's workspace, or change its limits", two[openRequest]((*Session).OpenWorkspace)),
	row("CloseWorkspace", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "prevent further handoffs from joining a workflow", one[nameRequest]((*Session).CloseWorkspace)),
	row("Workspace", "Workspaces", RoleOperator, Reads, actBytesMax, 0, "read the variables and locks of a workflow", one[nameRequest]((*Session).Workspace)),
	row("Workspaces", "Workspaces", RoleOperator, Reads, actBytesMax, 0, "list the workspaces", bare((*Session).Workspaces)),
	row("ResolveVariables", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "settle contradictory variables of a workflow", two[resolveRequest]((*Session).ResolveVariables)),
	row("Lock", "Sharer", RoleWorker, Harmless, actBytesMax, WaitMax, "lock paths of a workflow from within the work", lock),
	row("Unlock", "Sharer", RoleWorker, Harmless, actBytesMax, 0, "release locks", two[unlockRequest]((*Session).Unlock)),
	row("SetVariables", "Sharer", RoleWorker, Once, callBytesMax, 0, "set variables of a workflow", two[setVariablesRequest]((*Session).SetVariables)),
	row("HeldWorkspace", "Sharer", RoleWorker, Reads, actBytesMax, 0, "read the variables and locks of the handoff's workflow", one[leaseRequest]((*Session).HeldWorkspace)),
	row("Reroute", "Operator", RoleOperator, Harmless, actBytesMax, 0, "offer an open handoff to another agent", (*Session).Reroute),
	row("RollBack", "Operator", RoleOperator, Harmless, actBytesMax, 0, "roll a handoff back to its source, undone", two[interveneRequest]((*Session).RollBack)),
	row("Redrive", "Operator", RoleOperator, Harmless, actBytesMax, 0, "submit a handoff that closed without success again", (*Session).Redrive),
	row("Take", "Operator", RoleOperator, Once, actBytesMax, 0, "give an open handoff to an agent", take),
	row("Raise", "Operator", RoleOperator, Once, actBytesMax, 0, "add to the limits of an open handoff", two[raiseRequest]((*Session).Raise)),
	row("Dismiss", "Operator", RoleOperator, Harmless, actBytesMax, 0, "remove a closed handoff from an inbox", two[interveneRequest]((*Session).Dismiss)),
	row("Inbox", "Operator", RoleReader, Reads, actBytesMax, 0, "list the handoffs that wait for an agent or a person", one[inboxRequest]((*Session).Inbox)),
	row("DeadLetters", "Operator", RoleOperator, Reads, actBytesMax, 0, "list the handoffs that closed without success", (*Session).DeadLetters),
	row("Attention", "Operator", RoleOperator, Reads, actBytesMax, 0, "list the open handoffs that need a person", attention),
}

// JSONOrText reads a value that a person or a model wrote as a text: JSON if it parses, else that text.
func JSONOrText(value string) json.RawMessage {
	if json.Valid([]byte(value)) {
		return json.RawMessage(value)
	}
	text, _ := json.Marshal(value) // of a text it does not fail
	return text
}
