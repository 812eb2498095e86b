package brokertest

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// benchBroker is a broker with an agent, and a package of about 1 KiB for it.
func benchBroker(b *testing.B, e broker.Engine) (*broker.Broker, protocol.Package) {
	b.Helper()
	relay, err := broker.New(e, broker.Config{})
	if err != nil {
		b.Fatal(err)
	}
	if err := relay.EnsureQueue(b.Context(), "coder"); err != nil {
		b.Fatal(err)
	}
	if err := relay.PutProfile(b.Context(), protocol.Profile{ID: "coder"}); err != nil {
		b.Fatal(err)
	}
	text := make([]byte, 700)
	for i := range text {
		text[i] = "a line of text "[i%15]
	}
	return relay, protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "the plan is ready",
		Task: protocol.Task{ID: "t-1", Description: "write it"}, Context: protocol.Context{WorkflowID: "w-1", Summary: string(text)}}
}

func benchSubmit(b *testing.B, relay *broker.Broker, pkg protocol.Package) {
	prepared, err := relay.Prepare(b.Context(), pkg)
	if err == nil {
		_, err = relay.Submit(b.Context(), prepared)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSubmit is a package checked and prepared, its first append and its offer.
func BenchmarkSubmit(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		relay, pkg := benchBroker(b, e)
		for b.Loop() {
			benchSubmit(b, relay, pkg)
		}
	})
}

// BenchmarkLife is a whole handoff, one after another: submitted, pulled, accepted and
// started, completed.
func BenchmarkLife(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		relay, pkg := benchBroker(b, e)
		holder := protocol.Holder{ID: protocol.NewTicket(), Agent: "coder", LeaseMS: protocol.LeaseDefaultMS}
		if err := relay.Beat(b.Context(), holder); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			benchSubmit(b, relay, pkg)
			offers, err := relay.Pull(b.Context(), "coder", 1, 5*time.Second)
			if err != nil || len(offers) != 1 {
				b.Fatalf("%d offers, %v", len(offers), err)
			}
			claim, err := offers[0].Acknowledge(b.Context(), holder, protocol.Ack{Status: protocol.AckAccepted}, true)
			if err != nil {
				b.Fatal(err)
			}
			if err := claim.Complete(b.Context(), protocol.Result{Body: []byte(`"done"`)}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
