package natsgateway

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// shelves is a gateway with nothing but what it keeps.
func shelves() *Gateway {
	g := &Gateway{cfg: Config{Offers: 10, Requests: 10, MemoryBytes: 2500}}
	g.makeLimits()
	return g
}

// What is in hand is forgotten an ack wait after the last word about it, and is the
// agent's alone until then.
func TestWhatIsInHandIsForgotten(t *testing.T) {
	g := shelves()
	e, err := g.cache.add("coder", nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := g.cache.byToken("spy", e.token); ok {
		t.Error("another's")
	}
	_, done, ok := g.cache.byToken("coder", e.token)
	if !ok {
		t.Fatal("not there")
	}
	if err := g.cache.reserveBytes(t.Context(), e, 300); err != nil {
		t.Fatal(err)
	}
	if err := g.cache.reserveBytes(t.Context(), e, 200); !errors.Is(err, &protocol.Error{Code: protocol.CodeBusy}) {
		t.Errorf("over the share: %v", err)
	}
	later := time.Now().Add(broker.AckWait + time.Minute)
	if g.cache.sweep(later); g.packages.inUse() != 400 {
		t.Error("forgotten while it was used")
	}
	done() // and from now on it is kept longer than before the first word
	if g.cache.sweep(time.Now().Add(broker.AckWait - time.Second)); g.offers.inUse() != 1 {
		t.Error("forgotten before its time")
	}
	if g.cache.sweep(later); g.offers.inUse() != 0 || g.packages.inUse() != 0 || len(g.cache.all) != 0 {
		t.Errorf("%d offers, %d bytes left", g.offers.inUse(), g.packages.inUse())
	}
	if err := g.cache.reserveBytes(t.Context(), e, 100); err != nil || g.packages.inUse() != 0 {
		t.Errorf("what is forgotten has %d bytes, %v", g.packages.inUse(), err)
	}
}

// Parts are forgotten a minute after the last of them.
func TestPartsAreForgotten(t *testing.T) {
	g := shelves()
	answer, err := g.chunks.keepAnswer(t.Context(), "coder", []byte("an answer"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := g.chunks.put(t.Context(), "coder", "", 300, 0, []byte("a beginning"))
	if err != nil || g.bodies.inUse() != 309 {
		t.Fatalf("%d bytes, %v", g.bodies.inUse(), err)
	}
	if _, _, err := g.chunks.read("spy", answer, 0, 100); !errors.Is(err, &protocol.Error{Code: protocol.CodeGone}) {
		t.Errorf("another's: %v", err)
	}
	body, total, err := g.chunks.read("coder", answer, 3, 3)
	if err != nil || string(body) != "ans" || total != 9 {
		t.Errorf("%q of %d, %v", body, total, err)
	}
	if g.chunks.sweep(time.Now().Add(chunksExpireAfter - time.Second)); len(g.chunks.all) != 2 {
		t.Error("forgotten before their time")
	}
	if _, _, err := g.chunks.read("coder", answer, 9, 100); err != nil || g.bodies.inUse() != 300 {
		t.Errorf("read to the end: %v, %d bytes left", err, g.bodies.inUse())
	}
	if g.chunks.sweep(time.Now().Add(chunksExpireAfter + time.Second)); g.bodies.inUse() != 0 {
		t.Errorf("%d bytes left", g.bodies.inUse())
	}
	if _, err := g.chunks.put(t.Context(), "coder", request, 300, 11, []byte("x")); !errors.Is(err, &protocol.Error{Code: protocol.CodeGone}) {
		t.Errorf("a part of what is forgotten: %v", err)
	}
}
