package brokertest

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// A consumer with a foreign configuration stays, and serves. The engine logs once in which fields
// it differs.
func TestForeignConsumerIsNamed(t *testing.T) {
	k, n, js := newSingleNodeKit(t, embedded.Config{Fsync: embedded.FsyncInterval})
	said := &strings.Builder{} // nothing writes to it but what this test calls
	e, err := handoffjs.Dial(k.ctx, handoffjs.DialConfig{URL: n.ClientURL(),
		Config: handoffjs.Config{AckWait: AckWait, Log: slog.New(slog.NewTextHandler(said, nil))}})
	k.must(err)
	t.Cleanup(func() { _ = e.Close() })
	k.Engine = e
	usual, foreign := k.agentWithQueue(), k.agent()
	_, err = js.CreateConsumer(k.ctx, handoffjs.WorkStream, jetstream.ConsumerConfig{
		Durable: foreign + "-normal", FilterSubject: "handoff.work." + foreign + ".normal.>",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: AckWait + time.Minute, MaxDeliver: -1,
		MaxAckPending: 100_000, MaxWaiting: 10_000, MemoryStorage: true, Description: "mine",
	})
	k.must(err)
	for range 2 {
		k.must(k.EnsureQueue(k.ctx, foreign))
		k.must(k.EnsureQueue(k.ctx, usual))
	}
	var got []string
	for line := range strings.Lines(said.String()) {
		_, what, _ := strings.Cut(strings.TrimSpace(line), " consumer=")
		got = append(got, what)
	}
	want := []string{foreign + `-normal field=ack_wait is=61000000000 ours=1000000000`, foreign + `-normal field=description is="\"mine\"" ours=""`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("said\n%s\nwant\n%s", said, strings.Join(want, "\n"))
	}
	key := k.offer(foreign, protocol.Normal)
	if d := k.pull(foreign, 1)[0]; d.Key() != key {
		t.Errorf("pulled %v, want %v", d.Key(), key)
	}
}
