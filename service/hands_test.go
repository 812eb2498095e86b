package service

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// shelves is a door with nothing but what it keeps.
func shelves() *Door {
	d := &Door{cfg: Config{Offers: 10, Requests: 10, MemoryBytes: 2500}}
	d.limit()
	return d
}

// What is in hand is forgotten an ack wait after the last word about it, and is the
// agent's alone until then.
func TestWhatIsInHandIsForgotten(t *testing.T) {
	d := shelves()
	it, err := d.hand.take("coder", nil, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := d.hand.of("spy", it.token); ok {
		t.Error("another's")
	}
	_, done, ok := d.hand.of("coder", it.token)
	if !ok {
		t.Fatal("not there")
	}
	if err := d.hand.grow(t.Context(), it, 300); err != nil {
		t.Fatal(err)
	}
	if err := d.hand.grow(t.Context(), it, 200); !errors.Is(err, &protocol.Error{Code: protocol.CodeBusy}) {
		t.Errorf("over the share: %v", err)
	}
	later := time.Now().Add(broker.AckWait + time.Minute)
	if d.hand.sweep(later); d.packages.inUse() != 400 {
		t.Error("forgotten while it was used")
	}
	done() // and from now on it is kept longer than before the first word
	if d.hand.sweep(time.Now().Add(broker.AckWait - time.Second)); d.offers.inUse() != 1 {
		t.Error("forgotten before its time")
	}
	if d.hand.sweep(later); d.offers.inUse() != 0 || d.packages.inUse() != 0 || len(d.hand.all) != 0 {
		t.Errorf("%d offers, %d bytes left", d.offers.inUse(), d.packages.inUse())
	}
	if err := d.hand.grow(t.Context(), it, 100); err != nil || d.packages.inUse() != 0 {
		t.Errorf("what is forgotten has %d bytes, %v", d.packages.inUse(), err)
	}
}

// Parts are forgotten a minute after the last of them.
func TestPartsAreForgotten(t *testing.T) {
	d := shelves()
	answer, err := d.kept.keep(t.Context(), "coder", []byte("an answer"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := d.kept.put(t.Context(), "coder", "", 300, 0, []byte("a beginning"))
	if err != nil || d.bodies.inUse() != 309 {
		t.Fatalf("%d bytes, %v", d.bodies.inUse(), err)
	}
	if _, _, err := d.kept.read("spy", answer, 0, 100); !errors.Is(err, &protocol.Error{Code: protocol.CodeGone}) {
		t.Errorf("another's: %v", err)
	}
	body, total, err := d.kept.read("coder", answer, 3, 3)
	if err != nil || string(body) != "ans" || total != 9 {
		t.Errorf("%q of %d, %v", body, total, err)
	}
	if d.kept.sweep(time.Now().Add(keptFor - time.Second)); len(d.kept.all) != 2 {
		t.Error("forgotten before their time")
	}
	if _, _, err := d.kept.read("coder", answer, 9, 100); err != nil || d.bodies.inUse() != 300 {
		t.Errorf("read to the end: %v, %d bytes left", err, d.bodies.inUse())
	}
	if d.kept.sweep(time.Now().Add(keptFor + time.Second)); d.bodies.inUse() != 0 {
		t.Errorf("%d bytes left", d.bodies.inUse())
	}
	if _, err := d.kept.put(t.Context(), "coder", request, 300, 11, []byte("x")); !errors.Is(err, &protocol.Error{Code: protocol.CodeGone}) {
		t.Errorf("a part of what is forgotten: %v", err)
	}
}
