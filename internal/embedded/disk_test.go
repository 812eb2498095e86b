package embedded

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// TestRestartsAfterARefusedWrite checks that a server whose disk refused a write is restarted with
// the same streams on the same port.
func TestRestartsAfterARefusedWrite(t *testing.T) {
	prepared := 0
	n, err := Start(t.Context(), Config{Dir: t.TempDir(), Prepare: func(ctx context.Context, nc *nats.Conn, _ bool) error {
		prepared++
		return handoffjs.EnsureTopology(ctx, nc, handoffjs.Topology{AsyncWork: true})
	}})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := n.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "handoff.ledger.kept", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	url, first := n.ClientURL(), n.server()
	for range 3 { // the server logs it for each write
		n.log.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", handoffjs.LedgerStream, syscall.ENOSPC)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n.server() == first || n.Health() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not restarted: %v", n.Health())
		}
	}
	if n.ClientURL() != url || prepared != 2 {
		t.Errorf("serves at %s, was %s; prepared %d times", n.ClientURL(), url, prepared)
	}
	for { // the connection comes back by itself
		_, err = js.Publish(ctx, "handoff.ledger.next", []byte("{}"))
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	stream, streamErr := js.Stream(ctx, handoffjs.LedgerStream)
	if err != nil || streamErr != nil {
		t.Fatal(err, streamErr)
	}
	if msgs := stream.CachedInfo().State.Msgs; msgs < 2 {
		t.Errorf("%d messages in the ledger", msgs)
	}
	if problem := handoffjs.AskNode(ctx, nc); problem != "" {
		t.Errorf("the node says %q", problem)
	}
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
}

// TestHealthReportsTheDisk checks that Health names the directory.
func TestHealthReportsTheDisk(t *testing.T) {
	n := &Node{cfg: Config{Dir: "/data"}}
	n.setDiskErr(syscall.ENOSPC)
	if got := n.Health().Error(); got != "no space left on /data; 8 MiB have to be free" {
		t.Error(got)
	}
	n.setDiskErr(syscall.EIO)
	if got := n.Health().Error(); got != "/data refuses writes: input/output error" {
		t.Error(got)
	}
}
