package integrity

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

var (
	noon  = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	month = 30 * 24 * time.Hour
)

// whole is a ledger of a hundred entries, a month old, that an index has read.
func whole() Facts {
	return Facts{Created: noon.Add(-month), Began: noon.Add(-month), First: 1, Last: 100, LastAt: noon, Messages: 100, Now: noon,
		Seen: []Seen{{By: "its index", Created: noon.Add(-month), First: 1, FirstAt: noon.Add(-month), Last: 100, LastAt: noon}}}
}

func TestJudge(t *testing.T) {
	old := func(f *Facts) { // of a ledger that has dropped its front
		f.Created, f.Began, f.Now = noon.Add(-12*month), noon.Add(-12*month), noon
		f.First, f.Messages = 41, 60
		f.Seen[0].Created, f.Seen[0].FirstAt = f.Created, noon.Add(-7*month)
	}
	for _, c := range []struct {
		name    string
		change  func(*Facts)
		damage  string // empty is a ledger that is whole
		missing uint64
		warns   bool
	}{
		{"whole", func(*Facts) {}, "", 0, false},
		{"new", func(f *Facts) { *f = Facts{Now: noon} }, "", 0, false},
		{"empty", func(f *Facts) { f.First, f.Last, f.Messages, f.Seen = 0, 0, 0, nil }, "", 0, false},
		{"entries beyond those that were seen", func(f *Facts) { f.Seen[0].Last = 90 }, "", 0, false},
		{"a ledger that was restored", func(f *Facts) { f.Seen[0].Created, f.Seen[0].Last = noon.Add(-2*month), 5000 }, "", 0, false},
		{"a front that aged", old, "", 0, false},
		{"all has aged", func(f *Facts) { old(f); f.First, f.Last, f.Messages = 101, 100, 0 }, "", 0, false},
		{"accepted before", func(f *Facts) {
			f.Messages, f.Missing, f.Accepted = 98, []broker.Range{{From: 50, To: 51}}, []broker.Range{{From: 50, To: 60}}
		}, "", 0, false},
		{"accepted before, counted", func(f *Facts) { f.Messages, f.Accepted = 98, []broker.Range{{From: 50, To: 51}} }, "", 0, false},
		{"an unreadable entry", func(f *Facts) { f.Missing = []broker.Range{{From: 50, To: 50}} }, "1 entry cannot be read or is missing: 50", 1, false},
		{"a gap beside an accepted one", func(f *Facts) {
			f.Missing, f.Accepted = []broker.Range{{From: 50, To: 59}}, []broker.Range{{From: 50, To: 51}}
		}, "8 entries cannot be read or are missing: 52 to 59", 8, false},
		{"too few by count", func(f *Facts) { f.Messages = 97 }, "3 entries of 1 to 100 are missing", 0, false},
		{"a short end", func(f *Facts) { f.Last, f.Messages = 90, 90 }, "ends at entry 90, and its index has seen entry 100: 10 entries are missing (91 to 100)", 10, false},
		{"another entry in its place", func(f *Facts) { f.Seen[0].Differs = true }, "entry 100 differs from the one", 0, false},
		{"a lost front", func(f *Facts) { f.First, f.Messages = 11, 90 }, "the first 10 entries are missing (1 to 10), and the ledger is too young", 10, false},
		{"a front lost before its time", func(f *Facts) { old(f); f.Seen[0].FirstAt = noon.Add(-3 * month) }, "its index has seen them", 40, false},
		{"no ledger", func(f *Facts) { f.Created, f.First, f.Last, f.Messages = time.Time{}, 0, 0, 0 }, "there is no ledger, and its index has seen one with 100 entries", 100, false},
		{"no settings", func(f *Facts) { f.Created, f.Broken = time.Time{}, "its settings are gone" }, "its settings are gone", 100, false},
		{"a power cut within the window", func(f *Facts) {
			f.Last, f.Messages, f.Window, f.LastAt, f.LostSince = 90, 90, time.Second, noon.Add(-time.Hour), noon.Add(-700*time.Millisecond)
		}, "", 0, true},
		{"one entry of a quiet ledger within the window", func(f *Facts) {
			f.Last, f.Messages, f.Window, f.LastAt = 99, 99, time.Second, noon.Add(-time.Hour)
		}, "", 0, true},
		{"more than the window", func(f *Facts) {
			f.Last, f.Messages, f.Window, f.LostSince = 90, 90, time.Second, noon.Add(-3*time.Second)
		}, "10 entries are missing", 10, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := whole()
			c.change(&f)
			v := Judge(f)
			if got := strings.Join(v.Damage, "; "); (c.damage == "") != v.OK() || !strings.Contains(got, c.damage) {
				t.Errorf("damage %q, want %q", got, c.damage)
			}
			if n := broker.CountRanges(v.Missing); n != c.missing {
				t.Errorf("%d missing (%v), want %d", n, v.Missing, c.missing)
			}
			if (len(v.Warnings) > 0) != c.warns {
				t.Errorf("warnings %q", v.Warnings)
			}
		})
	}
}

func TestDamagedError(t *testing.T) {
	f := whole()
	f.Last = 90
	e := &DamagedError{Where: "the ledger in D", Verdict: Judge(f), Ways: []Way{{"Restore a backup", "restore"}, {"Or go on", "accept"}}}
	for range 4 {
		e.Handoffs.Add("t", true, 3)
	}
	const want = `the ledger in D is damaged:
  the ledger ends at entry 90,
  and its index has seen entry 100: 10 entries are missing (91 to 100)
This concerns 4 handoffs, 4 of them closed:
  t
  t
  t
  and 1 more
Nothing is offered.
Restore a backup:
  restore
Or go on:
  accept`
	if e.Error() != want {
		t.Errorf("%s\nwant\n%s", e, want)
	}
}

func TestWitnessFile(t *testing.T) {
	path := WitnessFile(filepath.Join(t.TempDir(), "a", "b"), noon, 0)
	if path == WitnessFile(filepath.Dir(path), noon.Add(1), 0) || path == WitnessFile(filepath.Dir(path), noon, 1) {
		t.Error("two ledgers have one witness")
	}
	var w Witness
	if found, err := ReadFile(path, &w); found || err != nil {
		t.Fatal(found, err)
	}
	want := Witness{Created: noon, First: 3, FirstAt: noon, Last: 9, LastAt: noon, LastSum: "ab"}
	for range 2 {
		if err := WriteFile(path, want); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := ReadFile(path, &w); !found || err != nil || w != want {
		t.Fatal(found, err, w)
	}
}
