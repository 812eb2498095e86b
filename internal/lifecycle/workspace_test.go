package lifecycle

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// sharers plays handoffs that share a workspace: what each asks for is drawn from choose, which
// returns a number below n.
type sharers struct {
	choose func(n int) int
	w      p.Workspace
	events []p.WorkspaceEvent
	now    time.Time
	steps  int
	ended  map[string]bool
	codes  map[p.Code]int
}

var sharedPaths = []string{"a", "b", "dir/", "dir/a", "dir/sub/", "./"}

func (s *sharers) ticket() string { return "t" + strconv.Itoa(s.choose(8)) }

func (s *sharers) paths() []p.LockPath {
	var list []p.LockPath
	for range 1 + s.choose(3) {
		list = append(list, p.LockPath{Path: sharedPaths[s.choose(len(sharedPaths))], Mode: p.LockModes[s.choose(2)]})
	}
	clean, err := p.CleanLocks("locks", list)
	if err != nil {
		clean, _ = p.CleanLocks("locks", list[:1])
	}
	return clean
}

// act asks for one thing.
func (s *sharers) act() (WorkspaceStep, error) {
	s.now = s.now.Add(time.Duration(s.choose(3)) * time.Second)
	ticket, wait := s.ticket(), time.Duration(s.choose(3))*3*time.Second
	switch s.choose(9) {
	case 0:
		most := s.choose(30)
		return OpenWorkspace(s.w, "w", p.WorkspaceLimits{MaxHandoffs: &most}, "human", s.now)
	case 1, 2:
		if s.ended[ticket] {
			return WorkspaceStep{State: s.w}, nil
		}
		j := Joining{Ticket: ticket, From: "a", To: "b", Wait: wait}
		if above := s.ticket(); s.choose(2) == 0 && above < ticket {
			if _, there := s.w.Draw(above); there {
				j.Above = above
			}
		}
		if s.choose(2) == 0 {
			j.Locks = s.paths()
		}
		return JoinWorkspace(s.w, "w", j, s.now)
	case 3:
		return EndPlace(s.w, ticket, false, s.now)
	case 4, 5:
		return LockPaths(s.w, LockRequest{Ticket: ticket, Fence: uint64(1 + s.choose(2)), By: "h", Locks: s.paths(), Wait: wait}, s.now)
	case 6:
		var which []p.LockPath
		if s.choose(2) == 0 {
			which = s.paths()
		}
		return UnlockPaths(s.w, ticket, uint64(1+s.choose(2)), which, s.now)
	case 7:
		set := Setting{Ticket: ticket, By: "h", Values: map[string]json.RawMessage{"v" + strconv.Itoa(s.choose(3)): json.RawMessage(strconv.Itoa(s.choose(9)))}}
		if version := s.choose(4); version > 0 {
			version--
			set.IfVersion = &version
		}
		return SetVariables(s.w, set, s.now)
	}
	return StepWorkspace(s.w, s.now)
}

func (s *sharers) play(t *testing.T, steps int) {
	t.Helper()
	for range steps {
		before, _ := json.Marshal(s.w)
		step, err := s.act()
		if now, _ := json.Marshal(s.w); string(now) != string(before) {
			t.Fatalf("the state before was changed:\n%s\n%s", before, now)
		}
		var refused *p.Error
		switch {
		case errors.As(err, &refused):
			s.codes[refused.Code]++
			continue
		case err != nil && s.w.Name == "":
			continue
		case err != nil:
			t.Fatal(err)
		case step.State.Name == "":
			continue
		}
		if err := CheckWorkspace(s.w, step.State); err != nil {
			t.Fatalf("%v\nbefore %s\nevents %+v", err, before, step.Events)
		}
		s.w, s.events, s.steps = step.State, append(s.events, step.Events...), s.steps+1
	}
	var replayed p.Workspace
	for _, e := range s.events {
		var err error
		if replayed, err = ApplyWorkspace(replayed, e); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(replayed, s.w) {
		t.Fatalf("replayed %+v, lived %+v", replayed, s.w)
	}
}

func newSharers(choose func(int) int) *sharers {
	return &sharers{choose: choose, now: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), codes: map[p.Code]int{}}
}

// TestWorkspaceTraces: whatever handoffs ask of a workspace, every state that follows can be.
func TestWorkspaceTraces(t *testing.T) {
	codes := map[p.Code]int{}
	for seed := range uint64(1000) {
		s := newSharers(rand.New(rand.NewPCG(seed, 1)).IntN)
		s.play(t, 60)
		for code, n := range s.codes {
			codes[code] += n
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, code := range []p.Code{p.CodeLimitExceeded, p.CodeLockBusy, p.CodeDeadlock, p.CodeConflict, p.CodeForbidden, p.CodeIllegal} {
		if codes[code] == 0 {
			t.Errorf("no request was refused with %s: %v", code, codes)
		}
	}
}

func FuzzWorkspace(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 4, 4})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newSharers(func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := int(data[0]) % n
			data = data[1:]
			return b
		})
		s.play(t, min(len(data), 200))
	})
}

// joined returns a workspace with handoffs t0 to tn-1.
func joined(t *testing.T, n int) p.Workspace {
	t.Helper()
	var w p.Workspace
	for i := range n {
		step, err := JoinWorkspace(w, "w", Joining{Ticket: "t" + strconv.Itoa(i), From: "a", To: "b"}, time.Unix(0, 0).UTC())
		if err != nil {
			t.Fatal(err)
		}
		w = step.State
	}
	return w
}

// request plays requests for locks: each is a handoff, a path, and r for a shared lock. It
// returns the workspace and the last refusal.
func request(t *testing.T, w p.Workspace, asks ...string) (p.Workspace, error) {
	t.Helper()
	var err error
	for _, ask := range asks {
		var step WorkspaceStep
		r := LockRequest{Ticket: ask[:2], Fence: 1, By: "h", Wait: time.Minute, Locks: []p.LockPath{{Path: ask[3:], Mode: p.LockExclusive}}}
		if ask[2] == 'r' {
			r.Locks[0].Mode = p.LockShared
		}
		step, err = LockPaths(w, r, time.Unix(1, 0).UTC())
		w = step.State
	}
	return w, err
}

// TestLockWaitIsBounded: no request waits for longer than a declared lock may.
func TestLockWaitIsBounded(t *testing.T) {
	w, err := request(t, joined(t, 2), "t0 a")
	if err != nil {
		t.Fatal(err)
	}
	const most = p.LockWaitMaxMS * time.Millisecond
	for wait, code := range map[time.Duration]p.Code{-time.Hour: p.CodeLockBusy, 0: p.CodeLockBusy, most: "", most + time.Millisecond: p.CodeInvalid, math.MaxInt64: p.CodeInvalid} {
		_, err := LockPaths(w, LockRequest{Ticket: "t1", Fence: 1, By: "h", Wait: wait, Locks: []p.LockPath{{Path: "a", Mode: p.LockExclusive}}}, time.Unix(1, 0).UTC())
		if code == "" && err != nil || code != "" && !errors.Is(err, &p.Error{Code: code}) {
			t.Errorf("a wait of %v: %v, want %q", wait, err, code)
		}
	}
}

func TestLocksInOrder(t *testing.T) {
	cases := []struct {
		name string
		asks []string
		has  string // the handoffs with locks after t0 has ended
		code p.Code
	}{
		{"the next in order", []string{"t0 a", "t1 a", "t2 a"}, "t1", ""},
		{"readers together", []string{"t0 a", "t1ra", "t2ra"}, "t1t2", ""},
		{"a reader does not pass a waiting writer", []string{"t0ra", "t1 a", "t2ra"}, "t1", ""},
		{"a folder covers what is below", []string{"t0 dir/", "t1 dir/x/y", "t2 dirty"}, "t1t2", ""},
		{"a file is in the way of its folder", []string{"t0 dir/x", "t1 dir/"}, "t1", ""},
		{"crossed requests", []string{"t0 x", "t1 a", "t2 b", "t1 b", "t2 a"}, "t1t2", p.CodeDeadlock},
		{"two who read and would both write", []string{"t0 x", "t1ra", "t2ra", "t1 a", "t2 a"}, "t1t2", p.CodeDeadlock},
		{"a reader alone may write", []string{"t0 x", "t1ra", "t2 a", "t1 a"}, "t1", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w, err := request(t, joined(t, 3), c.asks...)
			var refused *p.Error
			if errors.As(err, &refused); c.code == "" && err != nil || c.code != "" && (refused == nil || refused.Code != c.code) {
				t.Fatalf("refused as %v, want %q", err, c.code)
			}
			step, err := EndPlace(w, "t0", false, time.Unix(2, 0).UTC())
			if err != nil {
				t.Fatal(err)
			}
			has := ""
			for _, ticket := range []string{"t0", "t1", "t2"} {
				if len(step.State.LocksOf(ticket)) > 0 {
					has += ticket
				}
			}
			if has != c.has {
				t.Errorf("%s have locks, want %s: %+v", has, c.has, step.State)
			}
			if err := CheckWorkspace(w, step.State); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLocksOfALineage: a handoff is not in the way of those below it, nor after one between them
// has ended.
func TestLocksOfALineage(t *testing.T) {
	at := time.Unix(1, 0).UTC()
	w := joined(t, 1)
	for _, j := range []Joining{{Ticket: "t1", Above: "t0"}, {Ticket: "t2", Above: "t1"}, {Ticket: "t3"}} {
		step, err := JoinWorkspace(w, "w", j, at)
		if err != nil {
			t.Fatal(err)
		}
		w = step.State
	}
	step, err := EndPlace(w, "t1", false, at)
	if err != nil {
		t.Fatal(err)
	}
	w, err = request(t, step.State, "t0 a", "t3 a", "t2 a")
	if err != nil || len(w.LocksOf("t2")) != 1 || w.WaitOf("t3") == nil {
		t.Errorf("%v: %+v", err, w)
	}
	if b := Blockers(w, "t3"); len(b) != 2 || b[0].Ticket != "t0" || b[0].Path != "a" {
		t.Errorf("t3 waits for %+v", b)
	}
}

// TestLockFences: what was asked for in the work goes with its attempt, and what the package
// declares stays.
func TestLockFences(t *testing.T) {
	at := time.Unix(1, 0).UTC()
	step, err := JoinWorkspace(p.Workspace{}, "w", Joining{Ticket: "t0", Locks: []p.LockPath{{Path: "a", Mode: p.LockExclusive}}}, at)
	if err != nil {
		t.Fatal(err)
	}
	w, err := request(t, step.State, "t0 b")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		fence uint64
		left  int
	}{{2, 2}, {1, 1}, {1, 1}} {
		step, err := UnlockPaths(w, "t0", c.fence, nil, at)
		if w = step.State; err != nil || len(w.Locks) != c.left {
			t.Errorf("fence %d: %v, %+v", c.fence, err, w.Locks)
		}
	}
	if _, err := UnlockPaths(w, "t0", 1, []p.LockPath{{Path: "a"}}, at); !errors.Is(err, &p.Error{Code: p.CodeIllegal}) {
		t.Errorf("a declared lock was given back: %v", err)
	}
}

// TestWorkspaceCount: the limit is of all handoffs that ever joined, and joining twice counts once.
func TestWorkspaceCount(t *testing.T) {
	at, two := time.Unix(1, 0).UTC(), 2
	step, err := OpenWorkspace(p.Workspace{}, "w", p.WorkspaceLimits{MaxHandoffs: &two}, "human", at)
	for _, ticket := range []string{"t0", "t0", "t1"} {
		if err == nil {
			step, err = JoinWorkspace(step.State, "w", Joining{Ticket: ticket}, at)
		}
	}
	for _, ticket := range []string{"t0", "t0", "t9"} {
		if err == nil {
			step, err = EndPlace(step.State, ticket, false, at)
		}
	}
	if err != nil || step.State.Drawn != 2 || len(step.State.Draws) != 1 {
		t.Fatalf("%v: %+v", err, step.State)
	}
	_, err = JoinWorkspace(step.State, "w", Joining{Ticket: "t2"}, at)
	if !errors.Is(err, &p.Error{Code: p.CodeLimitExceeded, Field: "limits.max_handoffs"}) {
		t.Error(err)
	}
}

func TestVariableVersions(t *testing.T) {
	at, zero, one := time.Unix(1, 0).UTC(), 0, 1
	w := joined(t, 1)
	for _, c := range []struct {
		ticket string
		value  string
		if_    *int
		code   p.Code
	}{
		{"t0", `1`, &zero, ""}, {"t0", `2`, &zero, p.CodeConflict}, {"t0", `2`, &one, ""}, {"t9", `3`, nil, p.CodeForbidden}, {"", `"settled"`, nil, ""},
	} {
		step, err := SetVariables(w, Setting{Ticket: c.ticket, By: "h", Values: map[string]json.RawMessage{"v": json.RawMessage(c.value)}, IfVersion: c.if_}, at)
		var refused *p.Error
		if errors.As(err, &refused); c.code == "" && err != nil || c.code != "" && (refused == nil || refused.Code != c.code) {
			t.Fatalf("%+v: %v", c, err)
		}
		w = step.State
	}
	if v := w.Variables["v"]; v.Version != 3 || string(v.Value) != `"settled"` || v.Ticket != "" {
		t.Errorf("%+v", v)
	}
}

// TestWorkspaceNameIsNoKey: an agent of a gateway enters what lists it, what it opens, and what it
// hands off within.
func TestWorkspaceNameIsNoKey(t *testing.T) {
	none := p.Workspace{}
	opened, err := EnterWorkspace(none, "w", "builder", false, t0)
	if err != nil || len(opened.Events) != 1 || !opened.State.Lists("builder") || opened.State.Lists("tester") {
		t.Fatalf("the first one opens it: %+v, %v", opened, err)
	}
	listed, err := OpenWorkspace(none, "w", p.WorkspaceLimits{Agents: []string{"build*", "lead"}}, p.Human, t0)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := OpenWorkspace(none, "w", p.WorkspaceLimits{}, p.Human, t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of     p.Workspace
		agent  string
		within bool
		enters bool
	}{
		{opened.State, "builder", false, true}, {opened.State, "tester", false, false}, {opened.State, "tester", true, true},
		{listed.State, "builder", false, true}, {listed.State, "lead", false, true}, {listed.State, "leader", false, false},
		{closed.State, "builder", false, false}, {closed.State, "builder", true, true},
	} {
		step, err := EnterWorkspace(c.of, "w", c.agent, c.within, t0)
		if c.enters && err != nil || !c.enters && !errors.Is(err, &p.Error{Code: p.CodeForbidden, Field: "workspace"}) || len(step.Events) > 0 {
			t.Errorf("%s, within %t, of %v: %v", c.agent, c.within, c.of.Limits.Agents, err)
		}
	}
	again, err := OpenWorkspace(opened.State, "w", p.WorkspaceLimits{Agents: []string{"tester"}}, p.Human, t0)
	if err != nil || again.State.Lists("builder") || !again.State.Lists("tester") {
		t.Errorf("the operator lists others: %+v, %v", again.State.Limits, err)
	}
	if err := (p.WorkspaceLimits{Agents: []string{"a b"}}).Validate(); !errors.Is(err, &p.Error{Code: p.CodeText, Field: "limits.agents[0]"}) && err == nil {
		t.Errorf("a pattern that is none: %v", err)
	}
}
