package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

func instant(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

// TestNext has the instants around both changes of the clock: in Berlin at 01:00 UTC on 29 March and
// on 25 October 2026. A fixed hour fires once; a rule that begins with * follows real time.
func TestNext(t *testing.T) {
	for _, c := range []struct{ cron, zone, after, want string }{
		{"0 9 * * 1-5", "Europe/Berlin", "2026-03-27T00:00:00Z", "03-27T08:00 03-30T07:00 03-31T07:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", "03-28T01:30 03-29T01:00 03-30T00:30"}, // omitted: at the change
		{"0,30 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", "03-29T01:00 03-30T00:00"},
		{"0 3 * * *", "Europe/Berlin", "2026-03-28T03:00:00Z", "03-29T01:00 03-30T01:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", "10-24T00:30 10-25T00:30 10-26T01:30"}, // repeated: the first
		{"59 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "10-26T01:59"},
		{"0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "10-25T02:00 10-26T02:00"},
		{"0 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "03-29T01:00 03-29T02:00"},
		{"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "10-25T00:00 10-25T01:00 10-25T02:00"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "10-25T00:00 10-25T00:30 10-25T01:00 10-25T01:30 10-26T01:00"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "03-30T00:00"},
		{"@daily", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "11-04T03:00 11-05T02:00"},            // there is no midnight
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "12-29T22:00 12-30T10:00 12-30T22:00"}, // there is no 30 December
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", "04-04T14:45 04-05T15:15"},      // half an hour is repeated
		{"*/15 1 * * *", "Australia/Lord_Howe", "2026-04-04T14:20:00Z", "04-04T14:30 04-04T14:45 04-04T15:00 04-04T15:15"},
		{"0 0 29 2 *", "", "2026-01-01T00:00:00Z", "02-29T00:00"},
		{"@every 90m", "", "2026-01-01T00:10:00Z", "01-01T01:40 01-01T03:10"},
		{"0 0 13 * 5", "", "2026-02-01T00:00:00Z", "02-06T00:00 02-13T00:00 02-20T00:00"}, // the 13th, and each Friday
	} {
		rule, err := Parse(c.cron, c.zone, instant(c.after))
		if err != nil {
			t.Errorf("%s in %s: %v", c.cron, c.zone, err)
			continue
		}
		var got []string
		for _, at := range rule.coming(instant(c.after), len(strings.Fields(c.want))) {
			got = append(got, at.Format("01-02T15:04"))
		}
		if have := strings.Join(got, " "); have != c.want {
			t.Errorf("%s in %s: %s, want %s", c.cron, c.zone, have, c.want)
		}
	}
}

// TestNextByMinutes compares four days around each change of the clock with a walk over all minutes.
func TestNextByMinutes(t *testing.T) {
	for _, zone := range []string{"", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Santiago"} {
		for _, expression := range []string{"*/20 * * * *", "5 */2 * * *", "30 2 * * *", "15 0,1,2,3 * * 0", "45 23 1,15 * *", "*/25 2 * * *"} {
			from := instant("2026-01-01T00:00:00Z")
			rule, err := Parse(expression, zone, from)
			if err != nil {
				t.Fatal(err)
			}
			until := from.AddDate(1, 0, 0)
			next := rule.Next(from)
			for at := from.Add(time.Minute); at.Before(until); at = at.Add(time.Minute) {
				if near := at.Add(48 * time.Hour); at.Minute() == 0 && offsetOf(near.In(rule.zone)) == offsetOf(at.Add(-48*time.Hour).In(rule.zone)) {
					at = at.Add(time.Hour - time.Minute)
					next = rule.Next(at)
					continue
				}
				if fires := rule.firesAt(at); fires != next.Equal(at) {
					t.Fatalf("%s in %s: at %s %v, and next is %s", expression, zone, at.In(rule.zone), fires, next.In(rule.zone))
				} else if fires {
					next = rule.Next(at)
				}
			}
		}
	}
}

// firesAt reports whether a rule fires at a minute, by the clocks on the wall now and a minute ago.
func (r *Rule) firesAt(at time.Time) bool {
	matches := func(wall time.Time) bool { return r.spec.Next(wall.Add(-time.Second)).Equal(wall) }
	wall, before := wallOf(at.In(r.zone)), wallOf(at.Add(-time.Minute).In(r.zone)).Add(time.Minute)
	if r.every {
		return matches(wall)
	}
	for ; before.Before(wall); before = before.Add(time.Minute) { // omitted
		if matches(before) {
			return true
		}
	}
	if !matches(wall) {
		return false
	}
	for ago := time.Minute; ago <= 3*time.Hour; ago += time.Minute { // repeated
		if !wallOf(at.Add(-ago).In(r.zone)).Before(wall) {
			return false
		}
	}
	return true
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		cron, zone string
		code       p.Code
		field      string
	}{
		{"", "", p.CodeMissing, "cron"},
		{"0 0 31 2 *", "", p.CodeInvalid, "cron"},
		{"0 0 , * *", "", p.CodeInvalid, "cron"},
		{"* * * * * *", "", p.CodeInvalid, "cron"},
		{"*/5 * * * * *", "", p.CodeInvalid, "cron"},
		{"@every 59s", "", p.CodeInvalid, "cron"},
		{"@every 1s", "", p.CodeInvalid, "cron"},
		{"@every -5m", "", p.CodeInvalid, "cron"},
		{"@every", "", p.CodeInvalid, "cron"},
		{"@reboot", "", p.CodeInvalid, "cron"},
		{"61 * * * *", "", p.CodeInvalid, "cron"},
		{"*/0 * * * *", "", p.CodeInvalid, "cron"},
		{"* * *", "", p.CodeInvalid, "cron"},
		{"TZ=", "", p.CodeConflict, "cron"},
		{"CRON_TZ=Europe/Berlin 0 9 * * *", "", p.CodeConflict, "cron"},
		{strings.Repeat(" ", p.CronBytesMax) + "* * * * *", "", p.CodeTooLarge, "cron"},
		{"0 9 * * *", "Europe/Berlln", p.CodeInvalid, "zone"},
		{"0 9 * * *", "Local", p.CodeInvalid, "zone"},
		{"0 9 * * *", "../etc/passwd", p.CodeInvalid, "zone"},
	} {
		_, err := Parse(c.cron, c.zone, instant("2026-01-01T00:00:00Z"))
		if !errors.Is(err, &p.Error{Code: c.code, Field: c.field}) {
			t.Errorf("%q in %q: %v, want %s of %s", c.cron, c.zone, err, c.code, c.field)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 9 * * 1-5", "@every 1m", "*/7 1-3/2 ? JAN-MAR SUN", "TZ=", "@", "@every 1e9h", ", , , , ,", "1-0 * * * *"} {
		f.Add(text, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, text, zone string) {
		now := instant("2026-03-28T12:00:00Z")
		rule, err := Parse(text, zone, now)
		if err != nil {
			return
		}
		for range 20 {
			next := rule.Next(now)
			if next.IsZero() {
				return
			}
			if next.Sub(now) < periodMin && now.Second() == 0 {
				t.Fatalf("%q in %q: %s after %s", text, zone, next, now)
			}
			now = next
		}
	})
}

// TestDecide crosses missed instants with handoffs that overlap. The rule fires each hour, and was last
// decided at 00:00.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		missed  p.Missed
		overlap p.Overlap
		now     string
		open    bool
		waiting int
		want    string // firing | waiting | decided to, missed, skipped
	}{
		{now: "00:59", want: " |  | 00:00 0 0"},
		{now: "01:00", want: "01:00 |  | 01:00 0 0"},
		{now: "01:40", want: "01:00 |  | 01:00 0 0"}, // once: late, and made up
		{now: "04:10", want: "04:00 |  | 04:00 3 0"},
		{now: "01:00", open: true, want: " |  | 01:00 0 1"},
		{now: "04:10", open: true, want: " |  | 04:00 3 1"},
		{missed: p.MissedNone, now: "01:00", want: "01:00 |  | 01:00 0 0"},
		{missed: p.MissedNone, now: "01:02", want: " |  | 01:00 1 0"},
		{missed: p.MissedNone, now: "04:00", want: "04:00 |  | 04:00 3 0"},
		{missed: p.MissedNone, now: "04:10", want: " |  | 04:00 4 0"},
		{missed: p.MissedAll, now: "03:10", want: "01:00 |  | 03:00 0 2"}, // the others would overlap
		{missed: p.MissedAll, overlap: p.OverlapAllow, now: "03:10", want: "01:00 02:00 03:00 |  | 03:00 0 0"},
		{missed: p.MissedAll, overlap: p.OverlapAllow, now: "03:10", open: true, want: "01:00 02:00 03:00 |  | 03:00 0 0"},
		{missed: p.MissedAll, overlap: p.OverlapQueue, now: "03:10", want: "01:00 | 02:00 03:00 | 03:00 0 0"},
		{missed: p.MissedAll, overlap: p.OverlapQueue, now: "03:10", open: true, want: " | 01:00 02:00 03:00 | 03:00 0 0"},
		{overlap: p.OverlapQueue, now: "04:10", open: true, want: " | 04:00 | 04:00 3 0"},
		{overlap: p.OverlapAllow, now: "04:10", open: true, want: "04:00 |  | 04:00 3 0"},
		{overlap: p.OverlapQueue, now: "00:10", waiting: 1, open: true, want: " | 23:00 | 00:00 0 0"},
		{overlap: p.OverlapQueue, now: "00:10", waiting: 1, want: "23:00 |  | 00:00 0 0"},
		{overlap: p.OverlapQueue, now: "01:00", waiting: 1, want: "23:00 | 01:00 | 01:00 0 0"},
	} {
		day := instant("2026-01-02T00:00:00Z")
		s := p.Schedule{Name: "x", Cron: "0 * * * *", Missed: c.missed, Overlap: c.overlap, DecidedTo: day}
		for range c.waiting {
			s.Waiting = append(s.Waiting, day.Add(-time.Hour))
		}
		rule, err := Of(&s)
		if err != nil {
			t.Fatal(err)
		}
		next, changed := rule.Decide(s, instant("2026-01-02T"+c.now+":00Z"), c.open)
		got := fmt.Sprintf("%s | %s | %s %d %d", hours(next.Firing...), hours(next.Waiting...), hours(next.DecidedTo), next.MissedCount, next.SkippedCount)
		if unchanged := len(next.Firing) == 0 && next.DecidedTo.Equal(day); got != c.want || changed == unchanged {
			t.Errorf("%s, %s at %s, open %v: %s, want %s; changed %v", c.missed, c.overlap, c.now, c.open, got, c.want, changed)
		}
	}
}

func hours(all ...time.Time) string {
	var texts []string
	for _, at := range all {
		texts = append(texts, at.Format("15:04"))
	}
	return strings.Join(texts, " ")
}

// TestBounds: the instants that are made up, or wait, are bounded, and the last of them are made up.
func TestBounds(t *testing.T) {
	now := instant("2026-06-01T00:00:00Z")
	s := p.Schedule{Name: "x", Cron: "*/10 * * * *", Missed: p.MissedAll, Overlap: p.OverlapAllow, DecidedTo: now.AddDate(-2, 0, 0)}
	rule, err := Of(&s)
	if err != nil {
		t.Fatal(err)
	}
	next, _ := rule.Decide(s, now, false)
	if n := len(next.Firing); n != p.ScheduleMissedMax || !next.Firing[n-1].Equal(now) || next.MissedCount != 90*24*6-n {
		t.Errorf("%d are made up, the last at %s, %d are missed", n, next.DecidedTo, next.MissedCount)
	}
	s.Overlap = p.OverlapQueue
	for range 3 {
		s, _ = rule.Decide(s, now, true)
		now = now.AddDate(0, 0, 7)
	}
	if len(s.Waiting) != p.ScheduleWaitingMax || s.SkippedCount != 2*p.ScheduleMissedMax {
		t.Errorf("%d wait, %d are skipped", len(s.Waiting), s.SkippedCount)
	}
}

// TestLongAgo: a schedule that was decided long ago has the instants of its horizon, and no others.
func TestLongAgo(t *testing.T) {
	now := instant("2026-06-01T00:00:30Z")
	for cron, want := range map[string]int{"@every 1m": 90 * 24 * 60, "* * * * *": 90 * 24 * 60, "0 0 1 1 *": 0} {
		s := p.Schedule{Name: "x", Cron: cron}
		rule, err := Of(&s)
		if err != nil {
			t.Fatal(err)
		}
		next, changed := rule.Decide(s, now, false)
		if n := next.MissedCount + len(next.Firing); n != want || changed != (want > 0) || rule.IsDue(&next, now) {
			t.Errorf("%s: %d instants, changed %v", cron, n, changed)
		}
		if coming := rule.ComingOf(&s, now, 1); !coming[0].After(now) {
			t.Errorf("%s: next is %s", cron, coming[0])
		}
	}
}

// TestPaused: a paused schedule decides nothing, and one that is firing decides when that is done.
func TestPaused(t *testing.T) {
	day := instant("2026-01-02T00:00:00Z")
	s := p.Schedule{Name: "x", Cron: "0 * * * *", DecidedTo: day, PausedAt: day}
	rule, err := Of(&s)
	if err != nil {
		t.Fatal(err)
	}
	if _, changed := rule.Decide(s, day.Add(5*time.Hour), false); changed {
		t.Error("a paused schedule fires")
	}
	s.PausedAt, s.Firing = time.Time{}, []time.Time{day}
	if _, changed := rule.Decide(s, day.Add(5*time.Hour), false); changed {
		t.Error("a schedule decides while it fires")
	}
	s, changed := Done(s, p.Firing{At: day, Ticket: "t"})
	if _, again := Done(s, p.Firing{At: day, Ticket: "t"}); !changed || again || s.Last.Ticket != "t" || s.FiredCount != 1 || s.Firing != nil {
		t.Errorf("%v %v %+v", changed, again, s)
	}
}
