package brokertest

import (
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const aTraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// testTraces checks that a handoff is in the trace of its package or its context, that its children
// are in the same trace, whichever process submits them, and that the package has no trace.
func testTraces(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(4)
	given := pkg(to[3], to[0])
	given.Key, given.TraceParent, given.TraceState = "once", aTraceParent, "rojo=1"
	first := r.submit(delegated(given))
	if s := r.state(first.Ticket); s.Trace == nil || *s.Trace != (protocol.TraceContext{Parent: aTraceParent, State: "rojo=1"}) {
		r.Fatalf("the trace of the package became %+v", s.Trace)
	}
	given.TraceParent = "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-01"
	if again := r.submit(delegated(given)); again.Seq != first.Seq {
		r.Errorf("the same package from another trace is another handoff: %d, %d", again.Seq, first.Seq)
	}

	// Children follow from the work, or from what their own package says.
	worker := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(ticket string) bool { return ticket == first.Ticket }})
	claim := r.acceptOver(worker, to[0])
	work := claim.State().WorkTrace()
	finer := pkg("", to[1])
	finer.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-00"
	r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[1])},
		broker.Child{N: 1, Package: finer}, broker.Child{N: 2, Package: pkg("", to[1], to[2])}))
	head := r.head(first.Ticket)
	_, err := r.ensureChildren(head) // the worker died before it could submit them
	r.must(err)
	r.must(r.b.EnsureReturn(r.ctx, head))
	group := r.state(protocol.ChildTicketN(first.Ticket, 2))
	wantTrace(k, r.state(protocol.ChildTicketN(first.Ticket, 0)), work)
	wantTrace(k, r.state(protocol.ChildTicketN(first.Ticket, 1)), protocol.TraceContext{Parent: finer.TraceParent})
	wantTrace(k, group, work)
	wantTrace(k, r.state(protocol.ChildTicketN(group.Ticket, 1)), group.TraceAt(protocol.SpanHandoff, 0))
	wantTrace(k, r.state(head.State.ReturnTicket), head.State.TraceAt(protocol.SpanReturn, 0))
	if head.State.TraceID() != work.TraceID() {
		r.Errorf("the handoff is in the trace %x, its work in %x", head.State.TraceID(), work.TraceID())
	}

	// Without any a handoff begins a trace, and what follows says so.
	alone := r.submit(pkg("lead", to[2]))
	if alone.State.Trace != nil {
		r.Errorf("a handoff outside of any trace has one: %+v", alone.State.Trace)
	}
	var own *broker.Claim
	for own == nil || own.Ticket != alone.Ticket {
		own = r.accept(to[2])
	}
	child, err := own.HandOff(r.ctx, broker.Child{N: 0, Package: delegated(pkg("", to[1]))})
	r.must(err)
	wantTrace(k, r.state(child), own.State().WorkTrace())
	if s := r.state(child); !s.Trace.Own || s.TraceID() != alone.State.TraceID() {
		r.Errorf("the child of a handoff that began a trace has %+v", s.Trace)
	}

	inside := protocol.TraceContext{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-2222222222222222-01"}
	child, err = own.HandOff(broker.WithTrace(r.ctx, inside), broker.Child{N: 1, Package: delegated(pkg("", to[1]))})
	r.must(err)
	wantTrace(k, r.state(child), inside)
	child, err = own.HandOff(broker.WithTrace(r.ctx, own.State().WorkTrace().WithSampled(false)), broker.Child{N: 2, Package: delegated(pkg("", to[1]))})
	r.must(err)
	wantTrace(k, r.state(child), own.State().WorkTrace())

	// From a context, where the package says nothing.
	in, err := r.b.Prepare(r.ctx, pkg("lead", to[1]))
	r.must(err)
	within, err := r.b.Submit(broker.WithTrace(r.ctx, work), in)
	r.must(err)
	wantTrace(k, within.State, work)
}

func wantTrace(k *kit, s protocol.State, want protocol.TraceContext) {
	k.Helper()
	if s.Trace == nil || *s.Trace != want {
		k.Errorf("the trace of %s is %+v, want %+v", s.TargetWords(), s.Trace, want)
	}
}
