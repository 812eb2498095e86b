package embedded

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// TestLostConsumer: a consumer whose files are damaged can be made anew after the next start.
func TestLostConsumer(t *testing.T) {
	for _, c := range []struct{ name, file, text string }{
		{"state", "o.dat", "cut"},
		{"settings", "meta.inf", "{"},
		{"checksum", "meta.sum", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			consume := func(js jetstream.JetStream) {
				for range 3 {
					if _, err := js.Publish(t.Context(), handoffjs.LedgerSubjectPrefix+"x", nil); err != nil {
						t.Fatal(err)
					}
				}
				consumer, err := js.CreateOrUpdateConsumer(t.Context(), handoffjs.LedgerStream, jetstream.ConsumerConfig{Durable: "one", AckPolicy: jetstream.AckExplicitPolicy})
				if err != nil {
					t.Fatal(err)
				}
				msg, err := consumer.Next()
				if err != nil {
					t.Fatal(err)
				}
				if err := msg.DoubleAck(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			writeLedger(t, dir, nil, consume)
			path := filepath.Join(streamDir(dir, handoffjs.LedgerStream), "obs", "one", c.file)
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			node, err := Start(t.Context(), Config{Dir: dir, DontListen: true, Prepare: func(context.Context, *nats.Conn, bool) error { return nil }})
			if err != nil {
				t.Fatal(err)
			}
			nc, err := node.Conn()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			consume(js)
			if err := node.Stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
