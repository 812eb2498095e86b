package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestForesee: what is foreseen for a few handoffs, in words.
func TestForesee(t *testing.T) {
	long := fleet(agent("a"), agent("b", "x"))
	for name, c := range map[string]struct {
		d     *Directory
		make  func(d *Directory) *line
		after time.Duration // since the submission, that somebody asks
		want  string
	}{
		"nobody serves it": {fleet(agent("a")), func(d *Directory) *line { return submit(t, d, nil) }, 5 * sec,
			"30s timed_out acknowledge; escalated 1 a>human; offered human (escalation)"},
		"its last worker went a moment ago": {gone(fleet(agent("a")), "a", 40*sec), func(d *Directory) *line { return submit(t, d, nil) }, 45 * sec,
			"1m10s timed_out acknowledge; escalated 1 a>human; offered human (escalation)"},
		"the observer has only just come": {since(fleet(agent("a")), 50*sec), func(d *Directory) *line { return submit(t, d, nil) }, 60 * sec,
			"1m20s timed_out acknowledge; escalated 1 a>human; offered human (escalation)"},
		"all are busy": {fleet(agent("a")).live("a", "w", 4), func(d *Directory) *line { return submit(t, d, nil) }, time.Minute,
			"24h0m0s timed_out deadline; escalated 1 a>human; offered human (escalation)"},
		"somebody works": {fleet(agent("a")).live("a", "w", 1), func(d *Directory) *line { return submit(t, d, nil).accept("w", sec) }, time.Minute,
			"48m1s reminded"},
		"its worker is gone": {long, func(d *Directory) *line { return submit(t, d, nil).accept("w", sec) }, time.Minute,
			"1m0s lease_lost w; offered a (lease_lost)"},
		"it closed": {long, func(d *Directory) *line {
			return submit(t, d, nil).add(&p.Closed{Meta: at(sec), Outcome: p.OutcomeCancelled, Reason: "cancelled"})
		}, time.Minute, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			l := c.make(c.d)
			got := "nothing"
			if f, ok := Foresee(l.state, c.d.At(t0.Add(c.after))); ok {
				got = fmt.Sprint(f.At.Sub(t0), " ", brief(f.Events))
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// gone is a fleet whose observer saw the last worker of an agent go.
func gone(d *Directory, agent string, after time.Duration) *Directory {
	d.LastPresent[agent] = t0.Add(after)
	return d
}

// since is a fleet whose observer came so long after t0.
func since(d *Directory, after time.Duration) *Directory {
	d.ConnectedSince = t0.Add(after)
	return d
}

// TestForeseeIsDecide: in thousands of random states, what is foreseen is what
// Decide says at that instant, and before it Decide says nothing.
func TestForeseeIsDecide(t *testing.T) {
	const worlds, turns = 400, 150
	foreseen := map[string]int{}
	for seed := range uint64(worlds) {
		w := newWorld(seeded{rand.New(rand.NewPCG(seed, 4))}, &tally{})
		moments := rand.New(rand.NewPCG(seed, 5))
		w.submit()
		for range turns {
			w.turn()
			if w.n(6) == 0 {
				w.submit()
			}
			h := one(w, w.all...)
			if what := checkForesee(w, h.state, moments); what != "" {
				t.Fatalf("seed %d: %s\n%s", seed, what, w.json(h, h.state))
			}
			if f, ok := Foresee(h.state, w.d.At(w.now)); ok {
				foreseen[fmt.Sprint(h.state.Phase, " ", f.Events[0].EventType())]++
			}
		}
	}
	for _, want := range []string{"pending timed_out", "pending offered", "pending lease_lost", "accepted lease_lost", "working reminded",
		"working timed_out", "conditional offered", "conditional timed_out", "retrying offered", "failed retry_scheduled", "failed closed",
		"rejected rerouted", "rejected escalated", "complete return_sent"} {
		if foreseen[want] == 0 {
			t.Errorf("never foreseen: %s (there were %v)", want, foreseen)
		}
	}
}

// checkForesee says what is wrong with what is foreseen for a state, if anything.
func checkForesee(w *world, s p.State, moments *rand.Rand) string {
	now := w.now
	if s.UpdatedAt.After(now) {
		now = s.UpdatedAt
	}
	f, ok := Foresee(s, w.d.At(w.now))
	switch {
	case !ok && !s.Closed:
		return "open, and nothing is foreseen"
	case !ok:
		f.At = now.Add(365 * 24 * time.Hour)
	case f.At.Before(now):
		return fmt.Sprintf("foreseen at %s, before now, %s", f.At, now)
	case brief(f.Events) != brief(mustDecide(s, w.d, f.At).Events):
		return fmt.Sprintf("foreseen %s, decided %s", brief(f.Events), brief(mustDecide(s, w.d, f.At).Events))
	}
	span := f.At.Sub(now)
	if span <= 0 {
		return ""
	}
	before := []time.Time{now, f.At.Add(-1)}
	for range 6 {
		before = append(before, now.Add(time.Duration(moments.Int64N(int64(span)))), now.Add(time.Duration(moments.Int64N(min(int64(span), int64(2*time.Minute))))))
	}
	for _, at := range before {
		if events := mustDecide(s, w.d, at).Events; len(events) > 0 {
			return fmt.Sprintf("foreseen at %s, but at %s decided %s", f.At, at, brief(events))
		}
	}
	return ""
}
