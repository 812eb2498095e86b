//go:build proof

package process

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// fault is a fault of an offer or an attempt.
type fault string

const (
	nothing fault = ""
	refuse  fault = "refuse"
	ask     fault = "ask"
	fails   fault = "fail"
	sleeps  fault = "sleep" // past its lease
	panics  fault = "panic"
	dies    fault = "die"
)

var faults = []fault{refuse, ask, fails, sleeps, panics, dies}

const (
	relayLegs  = 5 // as many as there are agents
	relayLease = 2 * time.Second
	// relaySlots is more than one, so that a worker which is stopped or killed
	// takes innocent handoffs down with it.
	relaySlots = 2
)

// relayAgents stand in a ring.
var relayAgents = []string{"ada", "ben", "cleo", "dan", "eve"}

// roll has the random choices of one attempt. It depends on the seed and the handoff's state in the
// ledger alone, so that every process computes the same.
type roll struct {
	fault fault
	more  uint64 // for every further choice
}

// rollFor makes the roll of an attempt. Whatever brings a handoff back as the same
// attempt of the same agent (an answer, a return, a person) is in it too: else a
// question would be asked again for ever.
func rollFor(seed uint64, percent int, s protocol.State, attempt int) roll {
	returns := 0
	if s.Children != nil {
		returns = s.Children.Closed.Len()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %d %d %d %d %d", seed, s.Ticket, s.Agent, attempt, s.Supplements, s.Reroutes, s.Escalations, returns))
	n, more := binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])
	if kind := int(n%100) / percent; kind < len(faults) {
		return roll{faults[kind], more}
	}
	return roll{nothing, more}
}

// plan is the roll for what an agent does in every attempt at a handoff.
func plan(seed uint64, s protocol.State) roll {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", seed, s.Ticket, s.Agent))
	return roll{nothing, binary.BigEndian.Uint64(sum[:])}
}

// oneIn is true once in n times; what tells the choices of one roll apart.
func (r roll) oneIn(n uint64, what string) bool {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", r.more, what))
	return binary.BigEndian.Uint64(sum[:])%n == 0
}

// place is the position of a handoff in its relay. Besides the legs there are errands, which agents
// give each other on the way, and their returns.
type place struct{ chain, leg int }

func (p place) workflow() string { return fmt.Sprintf("chain %d", p.chain) }
func (p place) task() string     { return fmt.Sprintf("leg %d", p.leg) }

const errand = "errand"

// placeOf reads the place from what the ledger's state names too. isLeg is
// false for errands and returns.
func placeOf(workflow, task string, isReturn bool) (p place, isLeg bool, err error) {
	if _, err = fmt.Sscanf(workflow, "chain %d", &p.chain); err != nil || task == errand || isReturn {
		return p, false, err
	}
	_, err = fmt.Sscanf(task, "leg %d", &p.leg)
	return p, true, err
}

// agentFor is whose turn a leg is, where that is not the agent that hands off.
func (p place) agentFor(not string) string {
	i := (p.chain + p.leg) % len(relayAgents)
	if relayAgents[i] == not {
		i = (i + 1) % len(relayAgents)
	}
	return relayAgents[i]
}

// legResult is what an agent answers with: at the end of its leg its name, under
// the leg's. next is the leg that follows; false where nothing does.
func legResult(pkg protocol.Package, agent string) (result protocol.Result, next place, goesOn bool, err error) {
	at, isLeg, err := placeOf(pkg.Context.WorkflowID, pkg.Task.ID, pkg.Returned != nil)
	name, _ := json.Marshal(agent) // cannot fail
	if result.Body = name; !isLeg || err != nil {
		return result, next, false, err
	}
	for leg := range at.leg {
		if before := (place{at.chain, leg}).task(); pkg.Context.Variables[before] == nil {
			return result, next, false, fmt.Errorf("the variable of %s did not come along", before)
		}
	}
	result.Variables = map[string]json.RawMessage{at.task(): name}
	next = place{at.chain, at.leg + 1}
	return result, next, next.leg < relayLegs, nil
}

// words are the task of a leg. Each leg has another one, so that the agents which
// refused the leg before are asked for this one.
func (p place) words() string { return fmt.Sprintf("run leg %d", p.leg) }

// command asks for the next leg with the result, as LangGraph would.
func (p place) command(agent string) (*protocol.Command, error) {
	to, err := json.Marshal(p.agentFor(agent))
	if err != nil {
		return nil, err
	}
	update, err := json.Marshal(map[string]any{"task": protocol.Task{ID: p.task(), Description: p.words()}})
	return &protocol.Command{Goto: to, Update: update}, err
}

// Between a worker's process and the test that has started it go lines of text:
// "ready HOLDER", and "FAULT TICKET FENCE" where the process shall be stopped or
// killed; back come "go FENCE" once it was stopped for longer than its lease.
const (
	relayAgentVar   = "HANDOFF_TEST_RELAY_AGENT"
	relaySeedVar    = "HANDOFF_TEST_RELAY_SEED"
	relayPercentVar = "HANDOFF_TEST_RELAY_PERCENT"
)

// relayRunner is the handler of a worker's process.
type relayRunner struct {
	seed    uint64
	percent int
	out     *os.File

	mu      sync.Mutex
	stopped map[uint64]chan struct{} // by fence: closed when the driver says go
}

// TestRelayWorker is no test of its own: TestRelay runs it as the processes of
// its workers.
func TestRelayWorker(t *testing.T) {
	agent := os.Getenv(relayAgentVar)
	if agent == "" {
		t.Skip("TestRelay runs it in processes of its own")
	}
	if err := runRelayWorker(t, agent); err != nil {
		fmt.Fprintln(os.Stderr, err) // where the driver reads it
		os.Exit(1)
	}
}

func runRelayWorker(t *testing.T, agent string) error {
	seed, err := strconv.ParseUint(os.Getenv(relaySeedVar), 10, 64)
	percent, bad := strconv.Atoi(os.Getenv(relayPercentVar))
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r := &relayRunner{seed: seed, percent: percent, out: os.Stdout, stopped: map[uint64]chan struct{}{}}
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: os.Getenv("NATS_URL"), Name: agent})
	for errors.Is(err, broker.ErrUnreachable) && ctx.Err() == nil { // it is there, and slow to answer
		engine, err = jetstream.Dial(ctx, jetstream.DialConfig{URL: os.Getenv("NATS_URL"), Name: agent})
	}
	if err != nil {
		return err
	}
	defer engine.Close()
	w, err := worker.New(api.Direct(brokerOver(t, engine, broker.Config{}), agent), worker.Config{Agent: agent, Concurrency: relaySlots, Lease: relayLease,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}, r)
	if err != nil {
		return err
	}
	go r.listen() // not joined: it ends the process when the driver is gone
	r.tell("ready %s", w.Holder())
	return w.Run(ctx)
}

func (r *relayRunner) tell(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format+"\n", args...)
}

// listen reads what the driver says. A driver that is gone leaves no workers behind.
func (r *relayRunner) listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var fence uint64
		if _, err := fmt.Sscanf(lines.Text(), "go %d", &fence); err == nil {
			close(r.gate(fence))
		}
	}
	os.Exit(3)
}

func (r *relayRunner) gate(fence uint64) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped[fence] == nil {
		r.stopped[fence] = make(chan struct{})
	}
	return r.stopped[fence]
}

// Acknowledge answers some offers with no, and some with a question.
func (r *relayRunner) Acknowledge(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
	s := h.State()
	roll := r.rollFor(h, s.Attempt+1)
	if roll.oneIn(2, "early") {
		switch roll.fault {
		case refuse:
			return roll.refusal(s), nil
		case ask:
			return roll.question(), nil
		}
	}
	return protocol.Ack{Status: protocol.AckAccepted}, nil
}

// rollFor makes the roll of an attempt. No worker refuses a return: it is for its agent
// alone, and would wait for ever.
func (r *relayRunner) rollFor(h worker.Handoff, attempt int) roll {
	roll := rollFor(r.seed, r.percent, h.State(), attempt)
	if h.Package.Returned != nil && roll.fault == refuse {
		roll.fault = nothing
	}
	return roll
}

func (r roll) refusal(s protocol.State) protocol.Ack {
	ack := protocol.Ack{Status: protocol.AckRejected, Reason: "not my leg", ReasonCode: "not_mine"}
	if !r.oneIn(3, "no alternative") {
		i := slices.Index(relayAgents, s.Agent)
		ack.SuggestedAlternative = relayAgents[(i+1+int(r.more%3))%len(relayAgents)]
	}
	return ack
}

func (r roll) question() protocol.Ack {
	if r.oneIn(3, "permission") {
		return protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"to cross the road"}}
	}
	return protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"the colour of the baton"}}
}

// Handle runs a leg, or an errand, or fails at it.
func (r *relayRunner) Handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	s := h.State()
	roll := r.rollFor(h, h.Attempt)
	_, isLeg, _ := placeOf(s.WorkflowID, s.TaskID, s.ReturnOf != "")
	var waits string
	if isLeg {
		var err error
		if waits, err = r.errands(ctx, h); err != nil {
			return protocol.Result{}, unexpected(ctx, err)
		}
	}
	<-time.After(time.Duration(roll.more%20) * time.Millisecond) // the run itself
	if err := r.injectFault(h, roll); err != nil {
		return protocol.Result{}, err
	}
	isFree := s.EscalationLevel == 0 && s.Escalations < 3 && roll.fault == nothing
	switch {
	case roll.fault == sleeps: // it has overslept and does not know
	case waits != "":
		return protocol.Result{}, worker.Await(waits)
	case s.EscalationLevel > 0 && !slices.Contains(s.Chain, h.Agent) && roll.oneIn(3, "advise"): // no agent answers what it passed up
		return protocol.Result{}, worker.AnswerEscalation(protocol.Answer{Text: "you can do it"})
	case isLeg && isFree && roll.oneIn(30, "escalate"):
		return protocol.Result{}, worker.Escalate("the bridge is out", "the river is low")
	case isLeg && roll.oneIn(60, "back"):
		return protocol.Result{}, worker.RollBack("wrong baton", nil)
	}
	result, err := r.handOff(ctx, h)
	if err != nil && roll.fault == sleeps { // it was told, and hands in all the same
		err = nil
	}
	return result, unexpected(ctx, err)
}

// unexpected marks an error that no dice asked for, unless it is that of an end.
func unexpected(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &worker.Failure{Code: "relay", Err: err, Permanent: true}
}

// injectFault does what the dice say. It returns nil where the work goes on.
func (r *relayRunner) injectFault(h worker.Handoff, roll roll) error {
	switch roll.fault {
	case refuse:
		return worker.Refuse(roll.refusal(h.State()))
	case ask:
		return worker.Refuse(roll.question())
	case fails:
		err := errors.New("stumbled")
		if roll.oneIn(8, "for good") {
			return worker.Permanent(err)
		}
		return err
	case panics:
		panic("a bear on the track")
	case dies:
		r.tell("%s %s %d", dies, h.Ticket, h.Fence)
		select {} // until the process is killed
	case sleeps:
		r.tell("%s %s %d", sleeps, h.Ticket, h.Fence)
		<-r.gate(h.Fence)
	}
	return nil
}

// errands gives others something to do on the way: one agent whose return this
// one waits for, one whose return comes as work of its own, or a group of three.
// waits is the ticket of an errand whose return is not here yet.
func (r *relayRunner) errands(ctx context.Context, h worker.Handoff) (waits string, err error) {
	at, _, err := placeOf(h.Package.Context.WorkflowID, h.Package.Task.ID, false)
	if err != nil {
		return "", err
	}
	others := slices.DeleteFunc(slices.Clone(relayAgents), func(a string) bool { return a == h.Agent })
	pkg := h.Continue(others[at.chain%len(others)])
	pkg.Type, pkg.Task = protocol.Delegation, protocol.Task{ID: errand, Description: "bring water"}
	pkg.Return = &protocol.ReturnProtocol{Expected: true, Wait: "block", TimeoutMS: time.Hour.Milliseconds()}
	switch plan(r.seed, h.State()).more % 40 {
	case 0, 1, 2, 3:
	case 4, 5:
		pkg.Return.Wait = "continue"
	case 6:
		pkg.Type, pkg.Target = protocol.Broadcast, protocol.Target{Agents: others[:3]}
		pkg.Return.Aggregation = protocol.AggregateMajority
	default:
		return "", nil
	}
	ticket, err := h.HandOff(ctx, pkg)
	if _, back := h.Return(ticket); err != nil || back || pkg.Return.Wait != "block" {
		return "", err
	}
	return ticket, nil
}

// handOff ends a leg: the next one goes to an agent by name, by a command or by
// hand, or to a capability.
func (r *relayRunner) handOff(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	result, next, goesOn, err := legResult(h.Package, h.Agent)
	if err != nil || !goesOn {
		return result, err
	}
	how := plan(r.seed, h.State()).more / 40 % 3
	if how == 0 {
		result.Command, err = next.command(h.Agent)
		return result, err
	}
	pkg := h.Continue(next.agentFor(h.Agent))
	pkg.Task = protocol.Task{ID: next.task(), Description: next.words()}
	for name, value := range result.Variables {
		pkg.Context.Variables[name] = value
	}
	if how == 1 {
		pkg.Target = protocol.Target{Capability: relayCapability(next.chain + next.leg)}
	}
	_, err = h.HandOff(ctx, pkg)
	return result, err
}
