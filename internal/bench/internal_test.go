package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// TestGeneratedSize checks the stored size of generated packages.
func TestGeneratedSize(t *testing.T) {
	m := brokertest.NewMemory()
	defer m.Close()
	b := brokertest.Over(t, m)
	for _, size := range []int{sizeMin, SizeDefault, 10_000, 300_000} {
		pkg, err := generatePackage(size, "bench-123456-1", "bench-123456-1-1")
		if err != nil {
			t.Fatal(err)
		}
		rec := newRecorder(newClock(), "bench-123456-1")
		s := newSubmitters(Config{Open: 1}, b, rec, []string{"bench-123456-1-1"}, pkg)
		prepared, err := b.Prepare(t.Context(), s.packageFor(0, rec.clock.now()))
		if err != nil {
			t.Fatal(err)
		}
		// Zeros at the end of an instant are not written.
		if got := len(prepared.Body); got < size-7 || got > size {
			t.Errorf("a package of %d bytes has %d as stored", size, got)
		}
	}
	if _, err := generatePackage(100, "a", "b"); !errors.Is(err, &protocol.Error{Code: protocol.CodeInvalid}) {
		t.Errorf("a package of 100 bytes: %v", err)
	}
}

func TestInstants(t *testing.T) {
	for _, at := range []int64{0, 1, time.Now().UnixNano()} {
		state := protocol.State{}
		state.TaskID = instantID(at)
		if got, ok := instantOf(state); !ok || got != at {
			t.Errorf("%d came back as %d, %v", at, got, ok)
		}
	}
	if _, ok := instantOf(protocol.State{}); ok {
		t.Error("a task id of another kind is an instant")
	}
}

// TestUnproved checks that the proof finds missing, open and wrongly closed handoffs.
func TestUnproved(t *testing.T) {
	m := brokertest.NewMemory()
	defer m.Close()
	b := brokertest.Over(t, m)
	if err := registerAgents(t.Context(), b, []string{"agent"}); err != nil {
		t.Fatal(err)
	}
	pkg, err := generatePackage(SizeDefault, "source", "agent")
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder(newClock(), "source")
	s := newSubmitters(Config{Open: 10}, b, rec, []string{"agent"}, pkg)
	for range 2 {
		if err := s.submit(t.Context(), rec.clock.now()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Cancel(t.Context(), *s.recent.tickets[0].Load(), "ann", "no more"); err != nil {
		t.Fatal(err)
	}
	var unproved *UnprovedError
	_, err = proveRun(t.Context(), b, nil, "source", 3, s.ticketSum.Load())
	if !errors.As(err, &unproved) || unproved.Found != 2 || unproved.Open != 1 || unproved.Wrong != 1 || unproved.Example == "" {
		t.Errorf("%+v, %v", unproved, err)
	}
}

func TestReportOfRounds(t *testing.T) {
	var r Report
	r.Config.Via = []string{ViaNATS, ViaHTTP}
	r.summarize([][]Round{
		{{Figures: Figures{PerSecond: 3, CPUPerHandoff: 20}, Ratio: 0.5}, {Figures: Figures{PerSecond: 1, CPUPerHandoff: 30}, Ratio: 0.9}, {Figures: Figures{PerSecond: 2, CPUPerHandoff: 10}, Ratio: 0.6}},
		{{Figures: Figures{PerSecond: 4, CPUPerHandoff: 30}}},
	})
	if r.PerSecond != 2 || r.Ratio != 0.6 || len(r.Rounds) != 3 || r.Ways[0].CPURatio != 1 || r.Ways[1] != (Way{ViaHTTP, 4, 30, 0, 1.5}) {
		t.Errorf("%+v", r)
	}
}
