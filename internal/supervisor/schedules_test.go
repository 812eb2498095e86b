package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// year is a year of schedules on a test clock, with two supervisors. Each operation of one of them
// may be its last, and the other may look in the middle of any.
type year struct {
	t       *testing.T
	dice    *rand.Rand
	m       *brokertest.Memory
	b       *broker.Broker // the test's own
	now     time.Time
	bug     string
	pair    [2]*looker
	nested  bool
	kills   int
	made    map[string]int    // first appends by key
	open    map[string]string // the open handoff of each schedule that has one at a time
	overlap map[string]bool
	faults  []string
}

// keyForgotten is a planted bug: an engine that stores a second first append.
const keyForgotten = "a key forgotten"

// looker is a supervisor, until it is killed.
type looker struct {
	broker.Engine
	y    *year
	n    int
	dead bool
	look func(context.Context)
}

func (y *year) supervise(n int) {
	l := &looker{Engine: y.m, y: y, n: n}
	s, err := supervisor.New(y.over(l), nil, supervisor.Config{})
	if err != nil {
		y.t.Fatal(err)
	}
	l.look, y.pair[n] = s.Looker(), l
}

func (y *year) over(e broker.Engine) *broker.Broker {
	b, err := broker.New(e, broker.Config{Now: func() time.Time { return y.now }})
	if err != nil {
		y.t.Fatal(err)
	}
	return b
}

// step runs one operation of a supervisor. It may kill it before or behind, and let the other look.
func (l *looker) step(do func() error) error {
	if l.dead {
		return broker.ErrClosed
	}
	if l.y.dice.IntN(12) == 0 && !l.y.nested {
		l.y.nested = true
		l.y.pair[1-l.n].look(l.y.t.Context())
		l.y.nested = false
	}
	fate := l.y.dice.IntN(120)
	if fate > 1 {
		return do()
	}
	l.dead = true
	l.y.kills++
	if fate == 1 {
		_ = do()
	}
	return broker.ErrClosed
}

func (l *looker) Record(ctx context.Context, key broker.RecordKey) (body []byte, rev uint64, err error) {
	err = l.step(func() (err error) { body, rev, err = l.Engine.Record(ctx, key); return err })
	return body, rev, err
}

func (l *looker) PutRecord(ctx context.Context, key broker.RecordKey, body []byte, rev uint64) (next uint64, err error) {
	err = l.step(func() (err error) {
		next, err = l.Engine.PutRecord(ctx, key, body, rev)
		return err
	})
	return next, err
}

func (l *looker) Last(ctx context.Context, ticket string, min uint64) (e broker.Entry, err error) {
	err = l.step(func() (err error) { e, err = l.Engine.Last(ctx, ticket, min); return err })
	return e, err
}

var keyOf = regexp.MustCompile(`"key":"schedule:([^":]+):([^"]+)"`)

func (l *looker) Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (seq uint64, err error) {
	err = l.step(func() (err error) {
		seq, err = l.Engine.Append(ctx, ticket, after, id, attention, body)
		if errors.Is(err, broker.ErrConflict) && l.y.bug == keyForgotten {
			seq, err = 1<<40, nil
		}
		if found := keyOf.FindSubmatch(body); err == nil && found != nil && after == 0 {
			l.y.submitted(string(found[1]), string(found[2]), ticket)
		}
		return err
	})
	return seq, err
}

// submitted judges a new handoff.
func (y *year) submitted(name, instant, ticket string) {
	if y.made[name+" "+instant]++; y.made[name+" "+instant] > 1 {
		y.faults = append(y.faults, fmt.Sprintf("%s fires twice at %s", name, instant))
		return
	}
	if y.overlap[name] {
		return
	}
	if before := y.open[name]; before != "" {
		y.faults = append(y.faults, fmt.Sprintf("%s at %s overlaps %s", name, instant, before))
	}
	y.open[name] = ticket
}

// end ends the open handoff of a schedule.
func (y *year) end(name string) {
	ticket := y.open[name]
	if ticket == "" {
		return
	}
	if _, err := y.b.Cancel(y.t.Context(), ticket, "lead", "done"); err != nil && y.bug == "" {
		y.t.Fatal(err)
	}
	delete(y.open, name)
}

// TestYearOfSchedules: over both changes of the clock, each firing is one handoff, whatever dies.
func TestYearOfSchedules(t *testing.T) {
	if testworld.Race {
		t.Skip("a year of one goroutine takes twenty minutes with the race detector: run it without -race")
	}
	for seed := range uint64(2) {
		y := playYear(t, seed, "")
		for _, fault := range y.faults {
			t.Errorf("seed %d: %s", seed, fault)
		}
		if y.kills < 100 {
			t.Errorf("seed %d: %d kills", seed, y.kills)
		}
		t.Logf("seed %d: %d handoffs, %d kills", seed, len(y.made), y.kills)
	}
}

// TestYearFindsBug: a schedule that fires twice, because the second submission of a key is stored,
// is found.
func TestYearFindsBug(t *testing.T) {
	if y := playYear(t, 1, keyForgotten); len(y.faults) == 0 || !strings.Contains(y.faults[0], "fires twice") {
		t.Errorf("not found: %v", y.faults)
	}
}

func playYear(t *testing.T, seed uint64, bug string) *year {
	begun := time.Date(2030, 1, 1, 0, 0, 30, 0, time.UTC)
	y := &year{t: t, dice: rand.New(rand.NewPCG(seed, 38)), m: brokertest.NewMemory(), now: begun, bug: bug,
		made: map[string]int{}, open: map[string]string{}, overlap: map[string]bool{}}
	defer func() { _ = y.m.Close() }()
	y.b = y.over(y.m)
	brokertest.Register(t, y.b, "coder")
	rules := map[string]*schedule.Rule{}
	for i, overlap := range protocol.Overlaps {
		for j, missed := range protocol.MissedModes {
			s := protocol.Schedule{Name: string(overlap) + "-" + string(missed), Cron: "30 2 * * *", Zone: "Europe/Berlin", Overlap: overlap, Missed: missed}
			if (i+j)%2 == 1 {
				s.Cron, s.Zone = "0 */6 * * *", "America/New_York"
			}
			put, err := y.b.Schedules().Put(t.Context(), s, protocol.Package{Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "d"}})
			if err != nil {
				t.Fatal(err)
			}
			y.overlap[s.Name] = overlap == protocol.OverlapAllow
			if rules[s.Name], err = schedule.Of(&put); err != nil {
				t.Fatal(err)
			}
		}
	}
	names := slices.Sorted(maps.Keys(rules))
	y.supervise(0)
	y.supervise(1)
	until := begun.AddDate(1, 0, 0)
	for y.now.Before(until) && len(y.faults) == 0 {
		next := until
		for _, rule := range rules {
			if at := rule.Next(y.now); at.Before(next) {
				next = at
			}
		}
		y.now = next.Add(time.Duration(y.dice.IntN(2000)) * time.Millisecond)
		if y.dice.IntN(60) == 0 { // nothing runs
			y.now = y.now.Add(time.Duration(y.dice.IntN(72)) * time.Hour)
		}
		y.settle(names, y.dice.IntN(3))
	}
	y.settle(names, 20)
	for _, name := range names {
		y.judge(name, rules[name], begun)
	}
	return y
}

// settle lets the supervisors look for some seconds, and ends handoffs meanwhile.
func (y *year) settle(names []string, rounds int) {
	for range 4 + 4*rounds {
		for _, n := range y.dice.Perm(2) {
			if y.pair[n].dead && y.dice.IntN(3) == 0 {
				y.supervise(n)
			}
			y.pair[n].look(y.t.Context())
		}
		if y.dice.IntN(3) == 0 || rounds > 3 {
			y.end(names[y.dice.IntN(len(names))])
		}
		y.now = y.now.Add(3 * time.Second)
	}
}

// judge compares the handoffs of a schedule with the instants of its rule, and with its counts.
func (y *year) judge(name string, rule *schedule.Rule, begun time.Time) {
	s, _, err := y.b.Schedules().Get(y.t.Context(), name)
	if err != nil {
		y.t.Fatal(err)
	}
	fault := func(format string, args ...any) {
		y.faults = append(y.faults, name+": "+fmt.Sprintf(format, args...))
	}
	instants, made := 0, 0
	for at := rule.Next(begun); !at.After(s.DecidedTo); at = rule.Next(at) {
		instants++
		switch n := y.made[name+" "+at.Format(time.RFC3339)]; {
		case n > 1:
			fault("%d handoffs of %s", n, at)
		case n == 1:
			made++
		case s.Missed == protocol.MissedAll && s.Overlap == protocol.OverlapAllow:
			fault("no handoff of %s", at)
		}
	}
	all := 0
	for key := range y.made {
		if strings.HasPrefix(key, name+" ") {
			all++
		}
	}
	if all != made {
		fault("%d handoffs are of no instant", all-made)
	}
	if len(s.Firing) > 0 || s.FiredCount != made || made+s.MissedCount+s.SkippedCount+len(s.Waiting) != instants || s.RefusedCount > 0 {
		fault("of %d instants %d were made, and it counts %d fired, %d missed, %d skipped, %d refused, %d waiting, %d firing", instants, made, s.FiredCount, s.MissedCount, s.SkippedCount, s.RefusedCount, len(s.Waiting), len(s.Firing))
	}
	if next := rule.Next(s.DecidedTo); !next.After(y.now) {
		fault("%s was never decided", next)
	}
}
