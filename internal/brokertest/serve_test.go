package brokertest

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// A node goes and comes back: who serves goes on, and a question whose answer
// was lost with the connection is asked again.
func TestServeOutage(t *testing.T) {
	dir := t.TempDir()
	k, n, _ := newSingleNodeKit(t, embedded.Config{Dir: dir, Port: freePort(t)})
	port := portOf(t, n)
	verb, begun, first := k.verb(), make(chan struct{}), true
	defer k.serve(verb, func(ctx context.Context, q []byte) ([]byte, error) {
		if string(q) == "slow" && first {
			first = false
			close(begun)
			<-ctx.Done() // never answered
		}
		return q, nil
	})()
	_, err := k.askUntilServed(verb, "x")
	k.must(err)
	answered := make(chan error, 1)
	go func() {
		answer, err := k.Ask(k.ctx, verb, []byte("slow"))
		if err == nil && string(answer) != "slow" {
			err = errors.New("the answer is " + string(answer))
		}
		answered <- err
	}()
	receive(k, "the question", begun)
	k.must(n.Stop())
	startNode(t, embedded.Config{Dir: dir, Port: port})
	k.must(receive(k, "the answer", answered))
}

// The tools for NATS services see who answers, and an error as one.
func TestServeIsAService(t *testing.T) {
	k, n, js := newSingleNodeKit(t, embedded.Config{})
	verb := k.verb()
	defer k.serve(verb, func(context.Context, []byte) ([]byte, error) { return nil, errors.New("the disk is full") })()
	_, err := k.askUntilServed(verb, "x")
	if err == nil || errors.Is(err, broker.ErrNoAnswer) {
		k.Errorf("the error is %v", err)
	}
	nc := js.Conn()
	if _, err := nc.Request("$SRV.PING."+jetstream.QueryService, nil, waitTimeout); err != nil {
		k.Errorf("no service at %s: %v", n.ClientURL(), err)
	}
	reply, err := nc.Request("handoff.query."+verb, nil, waitTimeout)
	k.must(err)
	if reply.Header.Get(micro.ErrorCodeHeader) != "500" || string(reply.Data) != `{"code":"error","message":"the disk is full"}` {
		k.Errorf("%v %s", reply.Header, reply.Data)
	}
}
