package lifecycle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Limits by key. A worker that claims an offer takes a place under each key that bounds it. If one has
// none, the handoff gets a gate (protocol.GateLimit) and the offer ends, so that it takes no slot of its
// agent while it waits. A place that becomes free is kept for the first that waits: its gate opens, and
// its next claim finds the place. The first is the one of the most urgent lane that was submitted first.
//
// The use of a key is an entry that every process changes by compare-and-set. Each of these functions
// returns a changed copy.

// KeyPlaceKept is how long a place is kept until a worker claims the handoff. Then the next may have it: a place must not stay empty because one agent is busy.
const KeyPlaceKept = time.Second

// KeyClaim is a claim that needs a place under a key.
type KeyClaim struct {
	Ticket string
	Agent  string
	Order  p.KeyOrder
	Slot   p.Slot
	Limit  p.KeyLimit
	// TakesOver reports that the holder in the ledger is lost, and with it the place.
	TakesOver bool
}

// KeyOrderOf returns the order of a handoff for every key.
func KeyOrderOf(s *p.State) p.KeyOrder {
	return p.KeyOrder{Lane: max(0, slices.Index(p.Priorities, s.Priority)), Submitted: s.SubmittedAt.UnixMilli()}
}

// KeyVerdict is the answer to a claim that needs a place.
type KeyVerdict int

const (
	KeyTaken  KeyVerdict = iota // it has the place
	KeyShared                   // another claim of the same handoff has it; keep it once the ledger has this one
	KeyWaits                    // it waits in the order
	KeyFull                     // too many wait already
)

// TakeKeyPlace gives a claim a place under a key, or lets it wait. It may take a place that is kept for
// a handoff after it in the order.
func TakeKeyPlace(u p.KeyUse, c KeyClaim, now time.Time) (p.KeyUse, KeyVerdict) {
	u = dropUnclaimed(u, now)
	own, has := u.Places[c.Ticket]
	switch {
	case has && own.Holder != "" && SameSlot(own.Slot, c.Slot):
		return u, KeyTaken
	case has && own.Holder != "" && (own.Offer > c.Slot.Offer || own.Offer == c.Slot.Offer && !c.TakesOver):
		return u, KeyShared // an older offer may be delivered again; its claim will not be stored
	}
	u.Places = withoutPlace(u.Places, c.Ticket)
	if len(u.Waiting) > 0 && u.Waiting[0].Order.Before(c.Order, u.Waiting[0].Ticket, c.Ticket) {
		return waitForKey(u, c)
	}
	if !hasKeyRoom(&u, c.Limit, now) {
		later, found := lastUnclaimed(&u)
		if !found || !c.Order.Before(u.Places[later].Order, c.Ticket, later) {
			return waitForKey(u, c)
		}
		rest := u
		rest.Places = withoutPlace(u.Places, later)
		if !hasKeyRoom(&rest, c.Limit, now) {
			return waitForKey(u, c)
		}
		u = rest
	}
	u, c.Slot.At = stopWaiting(u, c.Ticket), now.UTC().Truncate(time.Millisecond)
	u.Places[c.Ticket] = p.KeyPlace{Slot: c.Slot, Agent: c.Agent, Order: c.Order}
	return startUnder(u, c.Limit, c.Slot.At), KeyTaken
}

// KeepKeyPlace gives the holder of a handoff its place, whatever the limit is. The entry was lost, or the
// holder was thought gone. It returns false if the holder has it already.
func KeepKeyPlace(u p.KeyUse, c KeyClaim) (p.KeyUse, bool) {
	if own, has := u.Places[c.Ticket]; has && SameSlot(own.Slot, c.Slot) {
		return u, false
	}
	u.Places = withoutPlace(u.Places, c.Ticket)
	u.Places[c.Ticket] = p.KeyPlace{Slot: c.Slot, Agent: c.Agent, Order: c.Order}
	return u, true
}

// FreeKeyPlace frees the place of a holder that has released the handoff. unstarted also takes back its
// start: the claim was not stored. It returns false if the holder does not have the place.
func FreeKeyPlace(u p.KeyUse, ticket string, slot p.Slot, unstarted bool) (p.KeyUse, bool) {
	own, has := u.Places[ticket]
	if !has || !SameSlot(own.Slot, slot) {
		return u, false
	}
	u.Places = withoutPlace(u.Places, ticket)
	if i := slices.Index(u.Starts, own.At.UnixMilli()); unstarted && i >= 0 {
		u.Starts = slices.Delete(slices.Clone(u.Starts), i, i+1)
	}
	return u, true
}

// DropKeyPlaces removes places that were found vacant.
func DropKeyPlaces(u p.KeyUse, vacant map[string]p.KeyPlace) (p.KeyUse, bool) {
	places := maps.Clone(u.Places)
	maps.DeleteFunc(places, func(ticket string, place p.KeyPlace) bool {
		found, is := vacant[ticket]
		return is && SameSlot(found.Slot, place.Slot)
	})
	changed := len(places) < len(u.Places)
	u.Places = places
	return u, changed
}

// AdmitWaiting keeps the free places for the handoffs that wait, in their order. It returns those whose gates are to be opened. limitOf, if not nil, returns the current limit of a handoff
// that waits, and false if its limit was removed: then it is admitted without a place.
func AdmitWaiting(u p.KeyUse, now time.Time, limitOf func(p.KeyWait) (p.KeyLimit, bool)) (p.KeyUse, []p.KeyWait) {
	var admitted []p.KeyWait
	if len(u.Waiting) > 0 {
		u = dropUnclaimed(u, now)
	}
	if limitOf != nil {
		waiting := make([]p.KeyWait, 0, len(u.Waiting))
		for _, w := range u.Waiting {
			limit, bounded := limitOf(w)
			if !bounded {
				admitted = append(admitted, w)
				continue
			}
			w.MaxConcurrency, w.Rate, w.PerMS = limit.MaxConcurrency, limit.Rate, limit.PerMS
			waiting = append(waiting, w)
		}
		u.Waiting = waiting
	}
	for len(u.Waiting) > 0 {
		w := u.Waiting[0]
		if !hasKeyRoom(&u, limitOfWait(w), now) {
			break
		}
		u.Places = withoutPlace(u.Places, w.Ticket)
		u.Places[w.Ticket] = p.KeyPlace{Slot: p.Slot{At: now.UTC().Truncate(time.Millisecond)}, Agent: w.Agent, Order: w.Order}
		u.Waiting = slices.Clone(u.Waiting[1:])
		admitted = append(admitted, w)
	}
	return u, admitted
}

// PauseKey pauses a key until an instant, KeyPauseMaxMS from now at most. The provider of a handoff that
// has a place throttles. It returns false if the handoff has none, or the key is paused for
// longer.
func PauseKey(u p.KeyUse, ticket string, until, now time.Time) (p.KeyUse, bool) {
	if last := now.Add(millis(p.KeyPauseMaxMS)); until.After(last) {
		until = last
	}
	if place, has := u.Places[ticket]; !has || place.Holder == "" || !until.After(u.PausedUntil) {
		return u, false
	}
	u.PausedUntil, u.PausedBy = until.UTC().Truncate(time.Millisecond), ticket
	return u, true
}

// clocksApart is the difference of two clocks that an entry of a key may show. A later pause or start was
// not written by these functions, and counts as none: nothing would ever end it.
const clocksApart = time.Minute

// KeyPaused reports whether no handoff may begin under a key.
func KeyPaused(u p.KeyUse, now time.Time) bool {
	return now.Before(u.PausedUntil) && !u.PausedUntil.After(now.Add(millis(p.KeyPauseMaxMS)+clocksApart))
}

// NextKeyTurn returns when time alone may let the first that waits begin. It is zero if none waits, or if
// it needs a place that a holder has.
func NextKeyTurn(u p.KeyUse, now time.Time) time.Time {
	if len(u.Waiting) == 0 {
		return time.Time{}
	}
	if KeyPaused(u, now) {
		return u.PausedUntil
	}
	limit, next := limitOfWait(u.Waiting[0]), time.Time{}
	for _, place := range u.Places {
		if kept := place.At.Add(KeyPlaceKept); place.Holder == "" && (next.IsZero() || kept.Before(next)) {
			next = kept
		}
	}
	if limit.MaxConcurrency > 0 && len(u.Places) >= limit.MaxConcurrency || limit.Rate == 0 {
		return next
	}
	started := startsIn(&u, limit, now)
	if over := len(started) + unclaimed(&u) - limit.Rate; over >= 0 && over < len(started) {
		oldest := time.UnixMilli(started[over]).Add(millis(limit.PerMS))
		if next.IsZero() || oldest.Before(next) {
			next = oldest
		}
	}
	return next
}

// KeyLimitFor returns the limit of a resolved key for an agent. It does not compare the path of a key.
func KeyLimitFor(key string, d *Directory, agent string) (p.KeyLimit, bool) {
	word, _, resolved := strings.Cut(key, ":")
	profile, _ := d.Agent(agent)
	for _, of := range [][]p.KeyLimit{d.fleet().LimitsBy, profile.LimitsBy} {
		for _, l := range of {
			if name, _, path := strings.Cut(l.Key, ":"); l.Key == key || resolved && path && name == word {
				return l, true
			}
		}
	}
	return p.KeyLimit{}, false
}

// KeyLimitOf returns the current limit of a key in use: that of an agent whose handoff has a place or waits,
// or of any other agent.
func KeyLimitOf(u p.KeyUse, d *Directory) (p.KeyLimit, bool) {
	agents := map[string]bool{}
	for _, place := range u.Places {
		agents[place.Agent] = true
	}
	for _, w := range u.Waiting {
		agents[w.Agent] = true
	}
	for _, used := range []bool{true, false} {
		for _, agent := range slices.Sorted(maps.Keys(d.Agents)) {
			if limit, has := KeyLimitFor(u.Key, d, agent); has && agents[agent] == used {
				return limit, true
			}
		}
	}
	return KeyLimitFor(u.Key, d, "")
}

// HasKeyLimits reports whether the settings of the fleet, or of an agent, limit a key.
func HasKeyLimits(d *Directory) bool {
	return len(d.fleet().LimitsBy) > 0 || d.anyAgent(func(profile *p.Profile) bool { return len(profile.LimitsBy) > 0 })
}

// AwaitKey puts a handoff without a place under a key behind a gate. Its offer ends.
func AwaitKey(s p.State, key, by string, now time.Time) (Step, error) {
	terms := p.GateTerms{Waits: []p.GateKind{p.GateLimit}, Agent: s.Agent, Offer: offerLimit, Key: key}
	if standing := standingFor(&s); standing != OfferRetry {
		terms.Offer = standing
	}
	return StepOf(s, &p.Gated{Meta: p.Meta{At: now, By: by}, GateTerms: terms})
}

// AwaitsKey returns the key under which a handoff waits for a place; empty if it waits for none.
func AwaitsKey(s p.State) string {
	if s.Closed || s.CancelRequested || s.Gate.First() != p.GateLimit {
		return ""
	}
	return s.Gate.Key
}

// hasKeyRoom reports whether one more handoff with a limit may begin.
func hasKeyRoom(u *p.KeyUse, limit p.KeyLimit, now time.Time) bool {
	return !KeyPaused(*u, now) &&
		(limit.MaxConcurrency == 0 || len(u.Places) < limit.MaxConcurrency) &&
		(limit.Rate == 0 || len(startsIn(u, limit, now))+unclaimed(u) < limit.Rate)
}

// startsIn returns the begins of the attempts in the last span of a rate.
func startsIn(u *p.KeyUse, limit p.KeyLimit, now time.Time) []int64 {
	from, _ := slices.BinarySearch(u.Starts, now.Add(-millis(limit.PerMS)).UnixMilli()+1)
	to, _ := slices.BinarySearch(u.Starts, now.Add(clocksApart).UnixMilli()+1)
	return u.Starts[from:to]
}

// KeyStatus is the use of one key at an instant.
type KeyStatus struct {
	p.KeyLimit     // the current limit; without numbers if it was removed
	Held       int `json:"held"`  // handoffs in work under it, or about to be claimed
	Begun      int `json:"begun"` // attempts that began in the last span of its rate
	Waiting    int `json:"waiting"`
	// PausedUntil is when handoffs may begin again, after the report of PausedBy (a ticket).
	PausedUntil p.Time `json:"paused_until,omitzero"`
	PausedBy    string `json:"paused_by,omitempty"`
}

// KeyStatusOf returns the use of a key under a limit.
func KeyStatusOf(u p.KeyUse, limit p.KeyLimit, now time.Time) KeyStatus {
	limit.Key = u.Key
	v := KeyStatus{KeyLimit: limit, Held: len(u.Places), Begun: len(startsIn(&u, limit, now)), Waiting: len(u.Waiting)}
	if KeyPaused(u, now) {
		v.PausedUntil, v.PausedBy = u.PausedUntil, u.PausedBy
	}
	return v
}

// startUnder records the begin of an attempt. Starts are kept for the longest span that was asked for.
func startUnder(u p.KeyUse, limit p.KeyLimit, at time.Time) p.KeyUse {
	u.SpanMS = max(u.SpanMS, limit.PerMS)
	if u.SpanMS == 0 {
		return u
	}
	ms := at.UnixMilli()
	from, _ := slices.BinarySearch(u.Starts, ms-u.SpanMS+1)
	to, _ := slices.BinarySearch(u.Starts, ms+clocksApart.Milliseconds()+1)
	from = max(from, to+1-p.KeyRateMax)
	u.Starts = append(slices.Clone(u.Starts[from:to]), ms)
	slices.Sort(u.Starts) // the clocks of two processes differ
	return u
}

// unclaimed counts the places that are kept.
func unclaimed(u *p.KeyUse) (n int) {
	for _, place := range u.Places {
		if place.Holder == "" {
			n++
		}
	}
	return n
}

// lastUnclaimed returns the last handoff in the order for which a place is kept.
func lastUnclaimed(u *p.KeyUse) (last string, found bool) {
	for _, ticket := range slices.Sorted(maps.Keys(u.Places)) {
		place := u.Places[ticket]
		if place.Holder == "" && (!found || u.Places[last].Order.Before(place.Order, last, ticket)) {
			last, found = ticket, true
		}
	}
	return last, found
}

// dropUnclaimed removes the places that were kept for long enough.
func dropUnclaimed(u p.KeyUse, now time.Time) p.KeyUse {
	for ticket, place := range u.Places {
		if place.Holder == "" && !now.Before(place.At.Add(KeyPlaceKept)) {
			u.Places = withoutPlace(u.Places, ticket)
		}
	}
	return u
}

func limitOfWait(w p.KeyWait) p.KeyLimit {
	return p.KeyLimit{MaxConcurrency: w.MaxConcurrency, Rate: w.Rate, PerMS: w.PerMS}
}

// waitForKey adds a claim to those that wait.
func waitForKey(u p.KeyUse, c KeyClaim) (p.KeyUse, KeyVerdict) {
	u = stopWaiting(u, c.Ticket)
	if len(u.Waiting) >= p.KeyWaitingMax {
		return u, KeyFull
	}
	wait := p.KeyWait{Ticket: c.Ticket, Agent: c.Agent, Order: c.Order, MaxConcurrency: c.Limit.MaxConcurrency, Rate: c.Limit.Rate, PerMS: c.Limit.PerMS}
	i, _ := slices.BinarySearchFunc(u.Waiting, wait, func(a, b p.KeyWait) int {
		if a.Order.Before(b.Order, a.Ticket, b.Ticket) {
			return -1
		}
		return 1
	})
	u.Waiting = slices.Insert(slices.Clone(u.Waiting), i, wait)
	return u, KeyWaits
}

func stopWaiting(u p.KeyUse, ticket string) p.KeyUse {
	if i := slices.IndexFunc(u.Waiting, func(w p.KeyWait) bool { return w.Ticket == ticket }); i >= 0 {
		u.Waiting = slices.Delete(slices.Clone(u.Waiting), i, i+1)
	}
	return u
}

// withoutPlace returns a copy of places without one.
func withoutPlace(places map[string]p.KeyPlace, ticket string) map[string]p.KeyPlace {
	next := maps.Clone(places)
	if next == nil {
		next = map[string]p.KeyPlace{}
	}
	delete(next, ticket)
	return next
}

// KeyLimitWords returns a limit in words: "8 at a time, 60 in 1m".
func KeyLimitWords(l p.KeyLimit) string {
	var words []string
	if l.MaxConcurrency > 0 {
		words = append(words, fmt.Sprintf("%d at a time", l.MaxConcurrency))
	}
	if l.Rate > 0 {
		words = append(words, fmt.Sprintf("%d in %s", l.Rate, spanWords(l.PerMS)))
	}
	return strings.Join(words, ", ")
}
