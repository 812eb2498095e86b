package tests

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/internal/embedded"
)

// cmdPlainServer starts a NATS server without Handoff's streams, and sets NATS_URL.
func cmdPlainServer(ts *testscript.TestScript, neg bool, args []string) {
	node, err := embedded.Start(context.Background(), embedded.Config{Dir: ts.MkAbs("plain")})
	ts.Check(err)
	ts.Defer(func() { _ = node.Stop() })
	ts.Setenv("NATS_URL", node.ClientURL())
}

// cmdWeaken changes a stream to what an older version made: its messages expire after a day.
func cmdWeaken(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	nc, err := nats.Connect(ts.Getenv("NATS_URL"))
	ts.Check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	stream, err := js.Stream(ctx, args[0])
	ts.Check(err)
	cfg := stream.CachedInfo().Config
	cfg.MaxAge = 24 * time.Hour
	_, err = js.UpdateStream(ctx, cfg)
	ts.Check(err)
}
