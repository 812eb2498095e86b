package natsgateway_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brokertest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// accounts is a server whose engine is in one account, and agents in another with
// the rights that a gateway asks for.
const accounts = `
listen: "127.0.0.1:%d"
jetstream { store_dir: %q }
accounts {
  ENGINE {
    jetstream: enabled
    users: [ { user: inside, password: secret } ]
    exports: [ { service: "handoff.v1.>" } ]
  }
  AGENTS {
    users: [
      { user: coder, password: secret, permissions: { publish: [ "handoff.v1.coder.>" ], subscribe: [ "_INBOX_coder.>" ] } }
      { user: watch, password: secret, permissions: { publish: [ "none" ], subscribe: [ ">" ] } }
      { user: spy, password: secret, permissions: { publish: [ "handoff.v1.spy.>" ], subscribe: [ "_INBOX_spy.>" ] } }
    ]
    imports: [ { service: { account: ENGINE, subject: "handoff.v1.>" } } ]
  }
}
`

// apart is a world with a real server process where agents are in another account.
func apart(t *testing.T) *world {
	t.Helper()
	port := testworld.Ports(t, 1)[0]
	dir := t.TempDir()
	config := filepath.Join(dir, "server.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, accounts, port, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	testworld.Start(t, "nats-server", nil, testworld.NATSServer(t), "-c", config)
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
	t.Cleanup(cancel)
	as := func(user string) string { return fmt.Sprintf("nats://%s:secret@127.0.0.1:%d", user, port) }
	return worldAt(t, ctx, as("inside"), as)
}

// A worker in another account that may do nothing but ask a gateway lives as any other.
func TestAcrossAccounts(t *testing.T) {
	t.Parallel()
	w := apart(t)
	w.register("coder", "spy")
	c := w.client("coder")
	if _, err := w.hasty("coder").Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "coder"}}); !errors.Is(err, natsgateway.ErrNobody) {
		t.Errorf("before there is a gateway: %v", err)
	}
	first := w.open(natsgateway.Config{})
	began, finish := make(chan struct{}, 10), make(chan struct{})
	w.run(worker.New(c, worker.Config{Agent: "coder", Concurrency: 2}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		began <- struct{}{}
		select {
		case <-finish:
		case <-ctx.Done():
		}
		return protocol.Result{Body: text(h.Package.Context.Summary)}, nil
	})))
	large := strings.Repeat("a long story. ", 100_000)
	ticket := w.submit("coder", func(p *protocol.Package) { p.Context.Summary = large })
	<-began
	w.open(natsgateway.Config{})
	first.kill()
	close(finish)
	if state := w.until(ticket, brokertest.Closed); state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
		t.Errorf("ended %s, %d attempts: %s", state.Outcome, state.AttemptsTotal, state.Message)
	}
	if result, _, err := w.b.Result(w.ctx, ticket); err != nil || len(result.Body) < len(large) {
		t.Errorf("a result of %d bytes, %v", len(result.Body), err)
	}
}

// What the server does not let through is said, and what it does an answer cannot
// forge: not even one whose every byte the spy has chosen.
func TestASpyInAnotherAccount(t *testing.T) {
	t.Parallel()
	w := apart(t)
	w.register("coder", "spy")
	d := w.open(natsgateway.Config{})
	trusted := w.nc
	listen := func(nc *nats.Conn) *nats.Subscription {
		t.Helper()
		sub, err := nc.SubscribeSync("handoff.v1.coder.>")
		if err == nil {
			err = nc.FlushTimeout(patience)
		}
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	inside, outside := listen(trusted), listen(w.conn("watch"))
	spy := w.conn("spy")

	// His own request whose body is, as a part to be read again, a request of coder's.
	forged := `{"package":{"key":"k","target":{"agent":"spy"},"reason":"r","task":{"description":"forged"}}}`
	put, err := spy.RequestMsgWithContext(w.ctx, &nats.Msg{Subject: natsgateway.SubjectAt("spy", d.ID(), "put"), Data: []byte(forged),
		Header: nats.Header{"Handoff-Request": {"1"}, "Handoff-Total": {fmt.Sprint(len(forged))}}})
	if err != nil {
		t.Fatal(err)
	}
	w.unchanged("an answer sent to coder's subject", func() {
		read := &nats.Msg{Subject: natsgateway.SubjectAt("spy", d.ID(), "read"), Reply: natsgateway.Subject("coder", "Submit"),
			Header: nats.Header{"Handoff-Request": {"1"}, "Handoff-More": {put.Header.Get("Handoff-Body")}}}
		if err := spy.PublishMsg(read); err != nil {
			t.Fatal(err)
		}
		// The server sends the answer to where he said, in his own account.
		got, err := outside.NextMsgWithContext(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Data) != forged || got.Reply != "" || got.Header.Get("Handoff-Request") != "" {
			t.Errorf("%s %v: this was to be an answer of his choice that is no request", got.Data, got.Header)
		}
		if _, err := w.client("spy").Status(w.ctx, protocol.NewTicket()); !hasCode(err, protocol.CodeNotFound) {
			t.Errorf("the gateway afterwards: %v", err) // which has seen what came before
		}
	})

	// This version of the server does not even send it on to the engine's account.
	if n, _, _ := inside.Pending(); n != 0 {
		t.Logf("%d answers came back as messages to the gateway", n)
	}

	// His own words on coder's subjects do not get through, and he is told.
	liar, err := natsgateway.NewClient(spy, natsgateway.ClientConfig{Agent: "coder"})
	if err != nil {
		t.Fatal(err)
	}
	defer liar.Close()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if _, err := liar.Status(ctx, protocol.NewTicket()); err == nil || !strings.Contains(err.Error(), "Permissions Violation for Publish") {
		t.Errorf("as coder: %v", err)
	}
}
