package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// keyWorld is the use of one key, as claims and releases change it at instants of a test.
type keyWorld struct {
	*testing.T
	use   p.KeyUse
	now   time.Time
	limit p.KeyLimit
}

func (w *keyWorld) claim(ticket string, lane int) KeyClaim {
	submitted := int64(len(ticket)) // "a" before "bb" before "ccc"
	return KeyClaim{Ticket: ticket, Agent: "agent", Order: p.KeyOrder{Lane: lane, Submitted: submitted},
		Slot: p.Slot{Holder: "holder of " + ticket, Offer: 7}, Limit: w.limit}
}

func (w *keyWorld) take(ticket string, lane int, want KeyVerdict) {
	w.Helper()
	var got KeyVerdict
	if w.use, got = TakeKeyPlace(w.use, w.claim(ticket, lane), w.now); got != want {
		w.Errorf("%s at %v: verdict %d, want %d", ticket, w.now.Sub(t0), got, want)
	}
}

func (w *keyWorld) free(ticket string, want ...string) {
	w.Helper()
	next, had := FreeKeyPlace(w.use, ticket, w.claim(ticket, 0).Slot, false)
	if !had {
		w.Errorf("%s has no place", ticket)
	}
	w.use = next
	w.admits(want...)
}

func (w *keyWorld) admits(want ...string) {
	w.Helper()
	next, admitted := AdmitWaiting(w.use, w.now, nil)
	w.use = next
	var got []string
	for _, a := range admitted {
		got = append(got, a.Ticket)
	}
	if !slices.Equal(got, want) {
		w.Errorf("admits %v, want %v", got, want)
	}
}

func (w *keyWorld) nextTurn(want time.Duration) {
	w.Helper()
	if next := NextKeyTurn(w.use, w.now); want == 0 && !next.IsZero() || want > 0 && !next.Equal(w.now.Add(want)) {
		w.Errorf("next turn %v after now, want %v", next.Sub(w.now), want)
	}
}

// TestKeyOrder: the most urgent first, then the first submitted; a late claim overtakes no other.
func TestKeyOrder(t *testing.T) {
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{MaxConcurrency: 1}}
	w.take("a", 2, KeyTaken)
	w.take("a", 2, KeyTaken) // delivered again
	w.take("dddd", 2, KeyWaits)
	w.take("ccc", 2, KeyWaits)
	w.take("eeeee", 0, KeyWaits)
	w.nextTurn(0)
	w.free("a", "eeeee")
	w.take("bb", 2, KeyWaits) // its place is kept for another
	w.take("eeeee", 0, KeyTaken)
	w.free("eeeee", "bb")
	w.nextTurn(KeyPlaceKept)
	w.now = t0.Add(KeyPlaceKept)
	w.admits("ccc") // the workers of bb are busy
	w.take("bb", 2, KeyTaken)
	w.take("ccc", 2, KeyWaits)
	w.free("bb", "ccc")
}

// TestKeyRate: no span has more starts than allowed, and a start that never was counts no more.
func TestKeyRate(t *testing.T) {
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{Rate: 2, PerMS: 10_000}}
	w.take("a", 2, KeyTaken)
	w.now = t0.Add(4 * time.Second)
	w.take("bb", 2, KeyTaken)
	w.take("ccc", 2, KeyWaits)
	w.nextTurn(6 * time.Second)
	w.free("a")
	w.free("bb")
	w.now = t0.Add(10 * time.Second)
	w.admits("ccc")
	w.take("ccc", 2, KeyTaken)
	w.take("dddd", 2, KeyWaits)
	w.nextTurn(4 * time.Second)
	next, had := FreeKeyPlace(w.use, "ccc", w.claim("ccc", 2).Slot, true)
	if w.use = next; !had || len(w.use.Starts) != 1 {
		t.Errorf("given back: %v, starts %v", had, w.use.Starts)
	}
	w.admits("dddd")
	for i := range p.KeyRateMax + 10 {
		w.use = startUnder(w.use, w.limit, w.now.Add(time.Duration(i)*time.Millisecond))
	}
	if n := len(w.use.Starts); n != p.KeyRateMax {
		t.Errorf("%d starts are kept", n)
	}
}

// TestKeyPause: a holder with a place pauses the key for all, for ten minutes at most.
func TestKeyPause(t *testing.T) {
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{MaxConcurrency: 2}}
	if _, changed := PauseKey(w.use, "a", t0.Add(time.Minute), t0); changed {
		t.Error("paused by a handoff without a place")
	}
	w.take("a", 2, KeyTaken)
	next, changed := PauseKey(w.use, "a", t0.Add(time.Hour), t0)
	if w.use = next; !changed || !w.use.PausedUntil.Equal(t0.Add(10*time.Minute)) || w.use.PausedBy != "a" {
		t.Errorf("paused until %v by %s", w.use.PausedUntil, w.use.PausedBy)
	}
	w.take("bb", 2, KeyWaits)
	w.free("a")
	w.nextTurn(10 * time.Minute)
	w.now = t0.Add(10 * time.Minute)
	w.admits("bb")
}

// TestKeyOfTheFuture: a pause and starts that no clock of ours wrote do not block a key for ever.
func TestKeyOfTheFuture(t *testing.T) {
	far := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{Rate: 1, PerMS: 60_000}}
	w.use = p.KeyUse{Key: "k", PausedUntil: far, Starts: []int64{far.UnixMilli()}, SpanMS: 60_000}
	w.take("a", 2, KeyTaken)
	w.take("bb", 2, KeyWaits)
	if len(w.use.Starts) != 1 {
		t.Errorf("starts %v", w.use.Starts)
	}
	w.nextTurn(time.Minute)
}

// TestKeyHolders: a second claim of a handoff shares its place, one that takes over replaces it, and
// places of holders that are gone are dropped.
func TestKeyHolders(t *testing.T) {
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{MaxConcurrency: 1}}
	w.take("a", 2, KeyTaken)
	other := w.claim("a", 2)
	other.Slot.Holder = "another"
	if _, got := TakeKeyPlace(w.use, other, w.now); got != KeyShared {
		t.Errorf("verdict %d", got)
	}
	stale := other
	stale.Slot.Offer-- // delivered again, long after another offer was claimed
	if next, got := TakeKeyPlace(w.use, stale, w.now); got != KeyShared || next.Places["a"].Offer != other.Slot.Offer {
		t.Errorf("verdict %d, %v", got, next.Places)
	}
	again := other
	again.Slot.Offer++ // the holder was lost, and the handoff offered again: another attempt begins
	if next, got := TakeKeyPlace(w.use, again, w.now); got != KeyTaken || next.Places["a"].Offer != again.Slot.Offer {
		t.Errorf("verdict %d, %v", got, next.Places)
	}
	other.TakesOver = true
	next, got := TakeKeyPlace(w.use, other, w.now)
	if got != KeyTaken || next.Places["a"].Holder != "another" {
		t.Errorf("verdict %d, %v", got, next.Places)
	}
	kept, changed := KeepKeyPlace(next, w.claim("a", 2))
	if again, twice := KeepKeyPlace(kept, w.claim("a", 2)); !changed || twice || again.Places["a"].Holder != "holder of a" {
		t.Errorf("kept: %v %v %v", changed, twice, again.Places)
	}
	place := kept.Places["a"]
	if left, dropped := DropKeyPlaces(kept, map[string]p.KeyPlace{"a": place}); !dropped || len(left.Places) != 0 {
		t.Errorf("dropped %v, %v left", dropped, left.Places)
	}
	if left, dropped := DropKeyPlaces(kept, map[string]p.KeyPlace{"a": {Slot: other.Slot}}); dropped || len(left.Places) != 1 {
		t.Errorf("dropped %v, %v left", dropped, left.Places)
	}
}

// TestKeyFull: a bounded number waits, and a limit that is gone, or wider, lets them begin.
func TestKeyFull(t *testing.T) {
	w := &keyWorld{T: t, now: t0, limit: p.KeyLimit{MaxConcurrency: 1}}
	w.take("a", 2, KeyTaken)
	for i := range p.KeyWaitingMax {
		c := w.claim(fmt.Sprintf("w%04d", i), 2)
		w.use, _ = TakeKeyPlace(w.use, c, w.now)
	}
	w.take("zz", 2, KeyFull)
	_, admitted := AdmitWaiting(w.use, w.now, func(k p.KeyWait) (p.KeyLimit, bool) {
		return p.KeyLimit{MaxConcurrency: 4}, k.Ticket != "w0500"
	})
	if len(admitted) != 4 || admitted[0].Ticket != "w0500" || admitted[1].Ticket != "w0000" {
		t.Errorf("admits %v", admitted)
	}
}

// TestKeyLimitFor: the limit of a resolved key is that of its word.
func TestKeyLimitFor(t *testing.T) {
	d := &Directory{Fleet: &p.Fleet{LimitsBy: []p.KeyLimit{{Key: "tenant", MaxConcurrency: 1}}},
		Agents: map[string]*p.Profile{"agent": {ID: "agent", LimitsBy: []p.KeyLimit{{Key: "model:$.variables.model", MaxConcurrency: 3}}}}}
	for key, want := range map[string]int{"tenant": 1, "model:gpt:5": 3, "model": 0, "other": 0} {
		if limit, _ := KeyLimitFor(key, d, "agent"); limit.MaxConcurrency != want {
			t.Errorf("%s: %+v", key, limit)
		}
	}
	if !HasKeyLimits(d) || HasKeyLimits(&Directory{}) {
		t.Error("whether there are limits is wrong")
	}
	if words := KeyLimitWords(p.KeyLimit{MaxConcurrency: 8, Rate: 60, PerMS: 60_000}); words != "8 at a time, 60 in 1m" {
		t.Error(words)
	}
}
