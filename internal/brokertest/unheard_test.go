package brokertest

import (
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/internal/jetstream"
)

// TestUnheardQuestion checks that the engine repeats a request without an answer: a cluster with a
// new leader was seen to ignore one. Here a stand-in answers for a server without JetStream, and
// ignores the first request.
func TestUnheardQuestion(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var asked atomic.Int64
	_, err = nc.Subscribe("$JS.API.STREAM.INFO."+jetstream.LedgerStream, func(m *nats.Msg) {
		if asked.Add(1) > 1 {
			_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404,"err_code":10059,"description":"stream not found"}}`))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if stands, err := jetstream.ReadTopology(t.Context(), nc); err != nil || stands != (jetstream.Topology{}) || asked.Load() != 2 {
		t.Errorf("%+v, %v after %d questions, want a second one to be answered", stands, err, asked.Load())
	}
}
