package jetstream

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// TestDeniedEntryIsTriedOnce: what a server denies stays denied, and a try takes its whole time.
func TestDeniedEntryIsTriedOnce(t *testing.T) {
	t.Parallel()
	ann := &server.User{Username: "ann", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"s"}}}}
	node, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, Users: []*server.User{ann}})
	if err != nil {
		t.Fatal(err)
	}
	node.Start()
	t.Cleanup(node.Shutdown)
	var denials atomic.Int64
	nc, err := nats.Connect("", nats.InProcessServer(node), nats.UserInfo("ann", ""), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			denials.Add(1)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	j := &Engine{nc: nc, acks: newAcks(nc), closing: t.Context(), cfg: Config{Timeout: broker.TimeoutDefault}}
	defer j.denied.follow(nc)()
	if err := j.storeEntry(t.Context(), &nats.Msg{Subject: "s"}); !errors.Is(err, broker.ErrNotAllowed) {
		t.Errorf("%v, want that it is not allowed", err)
	}
	if n := denials.Load(); n != 1 {
		t.Errorf("it was denied %d times, want once", n)
	}
}
