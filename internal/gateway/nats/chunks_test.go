package natsgateway

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// shelves is a gateway with nothing but what it keeps.
func shelves() *Gateway {
	g := &Gateway{cfg: Config{Requests: 10, MemoryBytes: 1500}}
	g.makeLimits()
	return g
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
