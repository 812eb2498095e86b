package supervisor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// TestBodyLost: of the open handoffs whose packages are stored apart, those whose body is gone are
// stuck with a reason that names it, offered or in work; the others are not. One whose body is put
// back goes on.
func TestBodyLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		_, stop := w.supervise(supervisor.Config{})
		large := func(text string) func(*protocol.Package) {
			return func(p *protocol.Package) {
				p.Context.Summary = strings.Repeat(text, protocol.InlineBytesMax/len(text)+1)
			}
		}
		working := w.submit(large("held "))
		holder := w.holder("coder", staying)
		claim := w.work(holder)
		offered, kept, small := w.submit(large("offered ")), w.submit(large("kept ")), w.submit(nil)
		stop()
		lost := map[string][]byte{}
		for _, ticket := range []string{working, offered} {
			ref := w.packageRef(ticket)
			body, err := w.b.Blob(w.ctx, ref)
			if err != nil {
				t.Fatal(err)
			}
			lost[ref.Digest] = body
			w.m.ReplaceBlob(ref.Digest, nil)
		}
		_, stop = w.supervise(supervisor.Config{})
		pass(time.Second)
		for ticket, want := range map[string]string{working: "body_lost: the package of " + working, offered: "body_lost: the package of " + offered, kept: "", small: ""} {
			if got := brokertest.Status(w, w.b, ticket).StuckReason; got != want && (want == "" || !strings.HasPrefix(got, want)) {
				t.Errorf("%s is stuck with %q, want %q", ticket, got, want)
			}
		}
		for digest, body := range lost {
			w.m.ReplaceBlob(digest, body)
		}
		stop()
		_, stop = w.supervise(supervisor.Config{})
		w.complete(claim) // it had read its package
		for range 3 {
			w.complete(w.work(holder))
		}
		for _, ticket := range []string{working, offered, kept, small} {
			if s := w.closed(ticket); s.Outcome != protocol.OutcomeSuccess {
				t.Errorf("%s closed as %s", ticket, s.Outcome)
			}
		}
		stop()
	})
}

// packageRef is where the package of a handoff is stored.
func (w *world) packageRef(ticket string) protocol.BlobRef {
	w.Helper()
	appends, _ := brokertest.History(w, w.b, ticket, " ")
	for _, c := range appends {
		for _, e := range c.Record.Events {
			if s, ok := e.(*protocol.Submitted); ok && s.Blob != nil {
				return *s.Blob
			}
		}
	}
	w.Fatalf("the package of %s is not stored apart", ticket)
	return protocol.BlobRef{}
}
