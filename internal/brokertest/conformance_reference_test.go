package brokertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// byReference is a package whose conversation goes by reference.
func byReference(to string, messages int) protocol.Package {
	p := pkg("lead", to)
	for i := range messages {
		p.Context.ConversationHistory = append(p.Context.ConversationHistory, fmt.Appendf(nil, `{"role":"user","content":"line %d"}`, i))
	}
	p.Context.HistoryTransfer.Mode = protocol.TransferReference
	return p
}

// testContextByReference: the package is small, the whole context is read by its ticket, without
// secrets, also that of a child and of what follows by goto; and the same key is the same handoff.
func testContextByReference(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	given := byReference(to[0], 150)
	secret := "ghp_" + strings.Repeat("0a1B", 9)
	given.Context.ConversationHistory[3] = []byte(`{"role":"user","content":"use ` + secret + `"}`)
	given.Key = "by reference"
	head := r.submit(given)
	if again := r.submit(given); again.Ticket != head.Ticket || again.Seq != head.Seq {
		r.Errorf("the same package again is %s at %d, and was %s at %d", again.Ticket, again.Seq, head.Ticket, head.Seq)
	}
	stored, err := r.b.Package(r.ctx, head.Ticket)
	r.must(err)
	if len(stored) > 4<<10 || bytes.Contains(stored, []byte("line 7")) {
		r.Errorf("the package has %d bytes: %.300s", len(stored), stored)
	}
	first := r.contextOf(head.Ticket)
	if n := len(first.ConversationHistory); n != 150 || string(first.ConversationHistory[149]) != `{"role":"user","content":"line 149"}` {
		r.Errorf("%d messages of 150, the last %s", n, first.ConversationHistory[n-1])
	}
	if third := string(first.ConversationHistory[3]); strings.Contains(third, secret) || !strings.Contains(third, "redacted") {
		r.Errorf("a secret is stored: %s", third)
	}

	claim := r.accept(to[0])
	child, err := claim.HandOff(r.ctx, broker.Child{Package: byReference(to[1], 70)})
	r.must(err)
	if n := len(r.contextOf(child).ConversationHistory); n != 70 {
		r.Errorf("%d messages of a child, not 70", n)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{Body: json.RawMessage(`"done"`), Command: &protocol.Command{Goto: json.RawMessage(fmt.Sprintf("%q", to[1]))}}))
	next := protocol.ChildTicketN(head.Ticket, 1)
	r.ensureChildren(r.head(head.Ticket))
	if n := len(r.contextOf(next).ConversationHistory); n != 150 {
		r.Errorf("%d messages behind a goto, not 150", n)
	}
}

func (r *familyKit) contextOf(ticket string) protocol.Context {
	r.Helper()
	c, err := r.b.Context(r.ctx, ticket)
	r.must(err)
	return c
}

// testContextOfOthers: the digest of another's package is the URL of no context, and so is one that
// was made up; a package without a reference has its own context.
func testContextOfOthers(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(1)[0]
	large := pkg("lead", to)
	large.Task.Description = strings.Repeat("secret ", 60_000)
	of := r.blobOf(r.submit(large).Ticket, 8<<10)
	for url, code := range map[string]protocol.Code{
		protocol.ContextURL(of): protocol.CodeUnreadable,
		protocol.ContextURL(protocol.BlobRef{Digest: protocol.Digest([]byte("made up")), Size: 7}): protocol.CodeNotFound,
	} {
		p := pkg("mallory", to)
		p.Context.ContextURL = url
		c, err := r.b.Context(r.ctx, r.submit(p).Ticket)
		wantField(k, err, code, "context.context_url")
		if body, _ := protocol.Marshal(c); bytes.Contains(body, []byte("secret")) {
			r.Errorf("%s: another's package is read", url)
		}
	}
	p := pkg("lead", to)
	p.Context.Summary, p.Context.ContextURL = "mine", "https://store.example/42"
	if c := r.contextOf(r.submit(p).Ticket); c.Summary != "mine" {
		r.Errorf("the context of a package is %+v", c)
	}
	if _, err := r.b.Context(r.ctx, protocol.NewTicket()); err == nil {
		r.Error("there is a context of no handoff")
	}
}
