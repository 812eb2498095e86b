package testworld

import (
	"testing"

	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// Engine starts a NATS server in this process, with the streams of Handoff, and connects to it.
// Both end with the test.
func Engine(t testing.TB) (url string, engine *jetstream.Engine) {
	t.Helper()
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval,
		Prepare: jetstream.Topology{AsyncWork: true}.Prepare})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop() })
	engine, err = jetstream.Dial(t.Context(), jetstream.DialConfig{URL: node.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return node.ClientURL(), engine
}
