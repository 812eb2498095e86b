package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// canned answers what a test wants, over a real engine: what an index would
// have to be caught at.
type canned struct {
	ask.Answers // not asked for
	mu          sync.Mutex
	stand       ask.Position
	rows        []ask.Row
	lists       []ask.ListQuery
	counts      []ask.CountQuery
}

func (c *canned) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// List pages through the rows; a cursor is where to go on.
func (c *canned) List(_ context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists = append(c.lists, q)
	from, to := 0, 0
	if q.Cursor != "" {
		if _, err := fmt.Sscan(q.Cursor, &from); err != nil {
			return ask.ListAnswer{}, protocol.Errorf(protocol.CodeInvalid, "cursor", "is none")
		}
	}
	to = min(from+q.Limit, len(c.rows))
	answer := ask.ListAnswer{Position: c.stand, Handoffs: c.rows[from:to]}
	if to < len(c.rows) {
		answer.Cursor = fmt.Sprint(to)
	}
	return answer, nil
}

func (c *canned) Count(_ context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = append(c.counts, q)
	return ask.CountAnswer{Position: c.stand, Count: int64(len(c.rows)),
		Groups: []ask.CountGroup{{Values: []string{"lead", "coder\x1b[2J"}, Count: 2}}}, nil
}

func (c *canned) Tickets(context.Context, ask.TicketsQuery) (ask.TicketsAnswer, error) {
	return ask.TicketsAnswer{Position: c.stand}, nil
}

func (c *canned) Position(context.Context, ask.PositionQuery) (ask.PositionAnswer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ask.PositionAnswer{Position: c.stand}, nil
}

// serveCanned answers on an engine until the test ends.
func serveCanned(t *testing.T, c *canned) (url string) {
	t.Helper()
	url, engine := testworld.Engine(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = engine.Serve(ctx, ask.Verbs(c)) // it ends with the test
	}()
	t.Cleanup(func() { cancel(); <-ended })
	if _, err := (ask.Client{Asker: engine}).Position(ctx, ask.PositionQuery{}); err != nil {
		t.Fatal(err)
	}
	return url
}

// command runs a command line.
func command(ctx context.Context, out, err io.Writer, args ...string) int {
	a := &app{in: strings.NewReader(""), out: out, err: err, env: func(string) string { return "" }}
	return a.run(ctx, args)
}

// cannedRows are n handoffs, the newest first.
func cannedRows(n int) []ask.Row {
	rows := make([]ask.Row, n)
	for i := range rows {
		rows[i] = ask.Row{Ticket: fmt.Sprintf("ticket-%d", i), Seq: uint64(n - i), Phase: protocol.Working, Source: "lead", Agent: "coder", Description: "write it"}
	}
	return rows
}

func TestListIsFreshOrSaysSo(t *testing.T) {
	c := &canned{rows: cannedRows(2), stand: ask.Position{Seq: 7, Behind: 3}}
	url := serveCanned(t, c)
	var out, notes bytes.Buffer
	run := func(want int, args ...string) {
		t.Helper()
		out.Reset()
		notes.Reset()
		if code := command(t.Context(), &out, &notes, append(args, "-s", url)...); code != want {
			t.Errorf("%v ended with %d, want %d: %s", args, code, want, notes.String())
		}
	}
	for _, args := range [][]string{{"list"}, {"list", "--count"}, {"conversation", "c"}, {"conversation", "c", "--last", "-o", "json"},
		{"list", "-o", "jsonl", "--all"}, {"list", "--count", "--by", "source", "-o", "json"}} {
		run(exitBehind, args...)
		if out.Len() > 0 || !strings.Contains(notes.String(), "--stale") || !strings.Contains(notes.String(), "7 of 10") {
			t.Errorf("%v printed %q, and says %q", args, out.String(), notes.String())
		}
	}
	run(exitBehind, "list", "-o", "json")
	var failure protocol.Error
	if err := json.Unmarshal(notes.Bytes(), &failure); err != nil || failure.Code != protocol.CodeBehind {
		t.Errorf("the error is %s", notes.String())
	}

	run(exitDone, "list", "--stale")
	if !strings.Contains(out.String(), "ticket-1") || !strings.Contains(notes.String(), "as of entry 7 of the ledger: 3 more") {
		t.Errorf("--stale prints %q, and says %q", out.String(), notes.String())
	}
	if wait := c.lists[len(c.lists)-1].WaitMS; wait >= 0 {
		t.Errorf("--stale waits %d ms", wait)
	}
	run(exitDone, "list", "--stale", "-o", "json")
	var answer ask.ListAnswer
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Complete || answer.Seq != 7 || answer.Behind != 3 || len(answer.Handoffs) != 2 {
		t.Errorf("the document is %s", out.String())
	}
	run(exitDone, "list", "--stale", "-o", "jsonl")
	var stand standView
	if err := json.Unmarshal(notes.Bytes(), &stand); err != nil || stand.Seq != 7 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("the lines are %s, beside them %s", out.String(), notes.String())
	}

	c.set(func() { c.stand.Behind = 0 })
	run(exitBehind, "list")
	if !strings.Contains(notes.String(), "does not know") {
		t.Errorf("it says %s", notes.String())
	}
	c.set(func() { c.stand.Complete = true })
	run(exitDone, "list", "--count", "--by", "source,target")
	if got := out.String(); !strings.HasPrefix(got, "2\n") || strings.Contains(got, "\x1b") || notes.Len() > 0 {
		t.Errorf("the count is %q, beside it %q", got, notes.String())
	}
}

func TestListPages(t *testing.T) {
	c := &canned{rows: cannedRows(2500), stand: ask.Position{Seq: 1, Complete: true}}
	url := serveCanned(t, c)
	for _, want := range []struct {
		args   string
		rows   int
		limits []int
		cursor string
	}{
		{"", 50, []int{50}, "50"},
		{"--limit 7 --cursor 2496", 4, []int{7}, ""},
		{"--limit 1500", 1500, []int{1000, 500}, "1500"},
		{"--all", 2500, []int{1000, 1000, 1000}, ""},
	} {
		c.lists = nil
		var out, notes bytes.Buffer
		if code := command(t.Context(), &out, &notes, append(strings.Fields("list -o jsonl "+want.args), "-s", url)...); code != exitDone {
			t.Errorf("%q ended with %d: %s", want.args, code, notes.String())
		}
		var limits []int
		for _, q := range c.lists {
			limits = append(limits, q.Limit)
		}
		var stand standView
		if err := json.Unmarshal(notes.Bytes(), &stand); err != nil || stand.Cursor != want.cursor {
			t.Errorf("%q: beside the rows is %s, want the cursor %q", want.args, notes.String(), want.cursor)
		}
		if rows := strings.Count(out.String(), "\n"); rows != want.rows || !reflect.DeepEqual(limits, want.limits) {
			t.Errorf("%q: %d rows in pages of %v, want %d in %v", want.args, rows, limits, want.rows, want.limits)
		}
	}
	var out, notes bytes.Buffer
	if code := command(t.Context(), &out, &notes, "list", "--cursor", "x", "-s", url); code != exitRefused || !strings.Contains(notes.String(), "cursor") {
		t.Errorf("a bad cursor ends with %d: %s", code, notes.String())
	}
}

func TestListAsksForWhatTheFlagsSay(t *testing.T) {
	c := &canned{stand: ask.Position{Complete: true}}
	url := serveCanned(t, c)
	args := []string{"list", "--agent", "a,b", "--agent", "c", "--source", "s", "--target", "capability x", "--phase", "pending,working", "--outcome", "failed",
		"--priority", "high", "--type", "delegation", "--workflow", "w, 1", "--conversation", "c,2", "--task", "t", "--parent", "11111111-1111-4111-8111-111111111111", "--group", "11111111-1111-4111-8111-111111111112", "--ticket", "11111111-1111-4111-8111-111111111113",
		"--since", "2026-01-31T17:00:00Z", "--until", "2026-02-01T00:00:00+01:00", "--changed-since", "1h", "--text", "login form*", "--closed", "--sort", "updated", "-s", url}
	if code := command(t.Context(), io.Discard, io.Discard, args...); code != exitRefused { // no agent is called a
		t.Fatalf("it ended with %d", code)
	}
	got := c.lists[0]
	if ago := time.Since(got.Filter.UpdatedSince); ago < time.Hour || ago > 2*time.Hour {
		t.Errorf("changed since %v", got.Filter.UpdatedSince)
	}
	got.Filter.UpdatedSince = time.Time{}
	closed := false
	want := ask.ListQuery{Sort: ask.SortUpdated, Limit: 50, Filter: ask.Filter{
		Agent: []string{"a", "b", "c"}, Source: []string{"s"}, Target: []string{"capability x"},
		Phase: []protocol.Phase{protocol.Pending, protocol.Working}, Outcome: []protocol.Outcome{protocol.OutcomeFailed},
		Open: &closed, Priority: []protocol.Priority{protocol.High}, Type: []protocol.Type{protocol.Delegation},
		WorkflowID: []string{"w, 1"}, ConversationID: []string{"c,2"}, TaskID: []string{"t"}, Parent: []string{"11111111-1111-4111-8111-111111111111"}, Group: []string{"11111111-1111-4111-8111-111111111112"},
		Ticket: []string{"11111111-1111-4111-8111-111111111113"},
		Since:  time.Date(2026, 1, 31, 17, 0, 0, 0, time.UTC), Until: time.Date(2026, 1, 31, 23, 0, 0, 0, time.UTC), Text: "login form*",
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("it asked\n%+v, want\n%+v", got, want)
	}
	command(t.Context(), io.Discard, io.Discard, "conversation", "c,2", "--from", "a", "--to", "b", "--count", "-s", url)
	if got := c.counts[0]; !reflect.DeepEqual(got.Filter, ask.Filter{ConversationID: []string{"c,2"}, Source: []string{"a"}, To: []string{"b"}}) || !got.Had {
		t.Errorf("the conversation is %+v", got)
	}
}

func TestNobodyKeepsAnIndex(t *testing.T) {
	t.Parallel()
	url, _ := testworld.Engine(t)
	for _, args := range []string{"list", "list --count", "conversation c", "stats", "list --stale -o json"} {
		args += " --timeout 2s"
		var out, notes bytes.Buffer
		code := command(t.Context(), &out, &notes, append(strings.Fields(args), "-s", url)...)
		if code != exitUnreachable || !strings.Contains(notes.String(), "handoff index") || out.Len() > 0 {
			t.Errorf("%s ended with %d: %s%s", args, code, out.String(), notes.String())
		}
	}
}

func TestListUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"list --open --closed", "list --limit 0", "list --all --limit 3", "list --by source", "list --count --all", "list --since soon",
		"list x", "conversation", "conversation c --last --count", "stats --top 0"} {
		var notes bytes.Buffer
		if code := command(t.Context(), io.Discard, &notes, strings.Fields(args)...); code != exitUsage {
			t.Errorf("%s ended with %d: %s", args, code, notes.String())
		}
	}
	if code := command(t.Context(), io.Discard, io.Discard, "list", "--agent", "\xff"); code != exitRefused {
		t.Errorf("no text ended with %d", code)
	}
}
