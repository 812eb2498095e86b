// Package integrity decides whether a ledger is whole. Its callers supply the facts: a node reads
// the files of its store, a supervisor asks the server. The ledger loses entries only at its front
// and only because of their age, so every other missing entry is damage.
//
// Guarantees: Judge is pure. A ledger that lost only entries older than broker.LedgerAge, or an
// unacknowledged end, is never damaged.
package integrity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// Facts are the facts about one ledger.
type Facts struct {
	// Created is when the ledger was created or restored, unique to each ledger. Zero is no ledger.
	Created time.Time
	// Began is the earliest possible time of its oldest entry.
	Began time.Time
	// Base is the number that its sequences follow: 0, or broker.PartitionBase.
	Base        uint64
	First, Last uint64
	LastAt      time.Time
	// Messages counts its entries; 0 is unknown.
	Messages uint64
	// Missing are the entries between First and Last that it does not have or that cannot be read.
	Missing []broker.Range
	// Accepted are missing entries that a person has accepted.
	Accepted []broker.Range
	// Broken is why no ledger can be read.
	Broken string
	// Headless is why the server cannot open it, although no entry is lost.
	Headless string
	// Window is the part of its end that a power cut may take: 0 if every write is synced.
	Window time.Duration
	// LostSince is the instant of the first entry after Last, by an index; zero is unknown.
	LostSince time.Time
	Seen      []Seen
	Now       time.Time
}

// Seen is the position of a ledger recorded by a witness or an index.
type Seen struct {
	By      string // for display: "the index in DIR"
	Created time.Time
	First   uint64 // 0 is unknown
	FirstAt time.Time
	Last    uint64
	LastAt  time.Time
	// Differs is set if its last entry is now a different one.
	Differs bool
}

// Verdict is the answer of Judge.
type Verdict struct {
	// Damage has one sentence for each kind of damage; empty if the ledger is whole.
	Damage []string
	// Missing are the entries whose loss no person has accepted, without those of Warnings.
	Missing  []broker.Range
	Warnings []string
}

// Join adds the verdict on another partition.
func (v *Verdict) Join(other Verdict) {
	v.Damage = append(v.Damage, other.Damage...)
	v.Missing = append(v.Missing, other.Missing...)
	v.Warnings = append(v.Warnings, other.Warnings...)
}

// OK reports whether the ledger is whole.
func (v Verdict) OK() bool { return len(v.Damage) == 0 }

func (v *Verdict) add(format string, args ...any) {
	v.Damage = append(v.Damage, fmt.Sprintf(format, args...))
}

// Judge decides whether a ledger is whole.
func Judge(f Facts) Verdict {
	var v Verdict
	f.Last = max(f.Last, f.Base)
	if f.Base > 0 { // nothing was seen of this partition
		f.Seen = slices.DeleteFunc(slices.Clone(f.Seen), func(s Seen) bool { return s.Last <= f.Base })
	}
	if f.Created.IsZero() {
		switch {
		case f.Broken != "":
			v.add("%s", f.Broken)
		case len(f.Seen) > 0:
			v.add("there is no ledger, and %s has seen one with %d entries", f.Seen[0].By, f.Seen[0].Last-f.Base)
		}
		if !v.OK() && len(f.Seen) > 0 {
			v.Missing = []broker.Range{{From: f.Base + 1, To: slices.MaxFunc(f.Seen, byLast).Last}}
		}
		return v
	}
	for _, why := range []string{f.Broken, f.Headless} {
		if why != "" {
			v.add("%s", why)
		}
	}
	v.judgeMiddle(f)
	v.judgeFront(f)
	v.judgeEnd(f)
	return v
}

func byLast(a, b Seen) int { return cmp.Compare(a.Last, b.Last) }

// judgeMiddle looks for missing entries between the first and the last.
func (v *Verdict) judgeMiddle(f Facts) {
	missing := broker.Without(f.Missing, f.Accepted)
	if n := broker.CountRanges(missing); n > 0 {
		v.add("%s cannot be read or %s missing: %s", entries(n), isAre(n), broker.RangeWords(missing))
		v.Missing = append(v.Missing, missing...)
		return
	}
	if f.Messages == 0 || f.Last < f.First || len(f.Missing) > 0 {
		return
	}
	accepted := broker.CountRanges(broker.Within(f.Accepted, f.First, f.Last))
	if want := f.Last - f.First + 1 - accepted; f.Messages < want {
		v.add("%s of %d to %d %s missing", entries(want-f.Messages), f.First, f.Last, isAre(want-f.Messages))
	}
}

// judgeFront looks for entries that the front lost too early.
func (v *Verdict) judgeFront(f Facts) {
	if f.First <= f.Base+1 || f.Last < f.First { // all may be dropped
		return
	}
	lost := func(from uint64, by string) {
		gone := broker.Without([]broker.Range{{From: from, To: f.First - 1}}, f.Accepted)
		if n := broker.CountRanges(gone); n > 0 {
			v.add("the first %s %s missing (%s), and %s", entries(n), isAre(n), broker.RangeWords(gone), by)
			v.Missing = append(v.Missing, gone...)
		}
	}
	if !f.Began.IsZero() && !(broker.LedgerInfo{Began: f.Began}).MayHaveDropped(f.Now) {
		lost(f.Base+1, "the ledger is too young to have dropped them for their age")
		return
	}
	for _, seen := range f.Seen {
		if f.same(seen) && seen.First > 0 && seen.First < f.First && !seen.FirstAt.IsZero() && f.Now.Sub(seen.FirstAt) < broker.LedgerAge-time.Hour {
			lost(seen.First, "they were too young to be dropped for their age: "+seen.By+" has seen them")
			return
		}
	}
}

// judgeEnd compares the end with the positions that others have recorded of this ledger.
func (v *Verdict) judgeEnd(f Facts) {
	var most *Seen
	for i, seen := range f.Seen {
		if !f.same(seen) {
			continue
		}
		if seen.Last <= f.Last {
			if seen.Differs {
				v.add("entry %d differs from the one that %s has seen", seen.Last, seen.By)
			}
			continue
		}
		if most == nil || seen.Last > most.Last {
			most = &f.Seen[i]
		}
	}
	if most == nil {
		return
	}
	gone := []broker.Range{{From: f.Last + 1, To: most.Last}}
	n := broker.CountRanges(gone)
	since := f.LostSince
	switch {
	case n == 1:
		since = most.LastAt
	case since.IsZero():
		since = f.LastAt
	}
	if f.Window > 0 && !most.LastAt.IsZero() && !since.IsZero() && most.LastAt.Sub(since) <= f.Window {
		v.Warnings = append(v.Warnings, fmt.Sprintf("the ledger has lost its last %s (%s), which is less than the %s that a sync at an interval may lose: %s has seen them",
			entries(n), broker.RangeWords(gone), f.Window, most.By))
		return
	}
	v.add("the ledger ends at entry %d, and %s has seen entry %d: %s %s missing (%s)", f.Last, most.By, most.Last, entries(n), isAre(n), broker.RangeWords(gone))
	v.Missing = append(v.Missing, gone...)
}

// same reports whether a witness recorded this ledger.
func (f Facts) same(s Seen) bool { return s.Created.Equal(f.Created) }

func entries(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

func isAre(n uint64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// DamagedError is the error of a damaged ledger. Nothing is offered then.
type DamagedError struct {
	Where    string
	Verdict  Verdict
	Handoffs Handoffs
	Ways     []Way // remedies, in their order
}

// lineMax is the longest line of a damage report: with its indent it fits a terminal.
const lineMax = 76

// Way is a remedy: its purpose and its command.
type Way struct{ For, Command string }

// Handoffs are the handoffs affected by damage, from an index.
type Handoffs struct {
	Count, Closed int
	First         []string // the first few tickets
}

// Add adds a handoff; shownMax bounds First.
func (h *Handoffs) Add(ticket string, closed bool, shownMax int) {
	h.Count++
	if closed {
		h.Closed++
	}
	if len(h.First) < shownMax {
		h.First = append(h.First, ticket)
	}
}

func (h Handoffs) String() string {
	text := count(h.Count, "handoff")
	if h.Closed > 0 {
		text += fmt.Sprintf(", %d of them closed", h.Closed)
	}
	text += ":"
	for _, ticket := range h.First {
		text += "\n  " + ticket
	}
	if more := h.Count - len(h.First); more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return text
}

// Error returns a line for each damage, handoff and command, which a terminal does not wrap.
func (e *DamagedError) Error() string {
	text := e.Where + " is damaged:"
	for _, damage := range e.Verdict.Damage {
		for part := range strings.SplitSeq(strings.ReplaceAll(damage, ", and ", ",\nand "), "\n") {
			if len(part) > lineMax {
				part = strings.Replace(part, ": ", ":\n  ", 1)
			}
			text += "\n  " + part
		}
	}
	if e.Handoffs.Count > 0 {
		text += "\nThis concerns " + e.Handoffs.String()
	}
	text += "\nNothing is offered."
	for _, way := range e.Ways {
		text += "\n" + way.For + ":\n  " + way.Command
	}
	return text
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
