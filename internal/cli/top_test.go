package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

var topNoon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// crowded is a picture of so many agents, and as many handoffs that need somebody.
func crowded(n int) topView {
	v := topView{At: topNoon, Open: int64(n), Rates: rates{12.34, 1.26, 0}}
	for i := range n {
		v.Agents = append(v.Agents, topAgent{Agent: fmt.Sprintf("agent-%02d", i), Availability: api.Present, Workers: 1, Slots: 4, Busy: 3,
			Queued: 5, Lanes: topLanes{Critical: 1, Normal: 4}, Waiting: topNoon.Add(-time.Minute)})
		v.Attention = append(v.Attention, attention{Why: "person", Ticket: fmt.Sprintf("ticket-%02d", i), Agent: "human",
			SubmittedAt: topNoon.Add(-time.Hour), Words: strings.Repeat("much to say ", 20) + "\x1b[31m"})
	}
	return v
}

func TestTopFits(t *testing.T) {
	topLines := (&app{format: formatText, env: func(string) string { return "" }}).topLines
	for _, agents := range []int{0, 1, 5, 100} {
		for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}, {20, 5}, {10, 2}, {1, 1}} {
			v := crowded(agents)
			v.Triggers = &dossier.Triggers{Waiting: agents}
			for i := range agents {
				v.Triggers.All = append(v.Triggers.All, explain.OfSchedule(&protocol.Schedule{Name: fmt.Sprint(i), Cron: "@daily", DecidedTo: topNoon}, topNoon))
			}
			lines := topLines(v, size[0], size[1])
			if len(lines) > size[1] {
				t.Errorf("%d agents on %v: %d lines", agents, size, len(lines))
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > size[0] || strings.ContainsAny(line, "\x1b\n\r") {
					t.Errorf("%d agents on %v: line %q", agents, size, line)
				}
			}
		}
	}
	lines := topLines(crowded(100), 100, 24)
	text := strings.Join(lines, "\n")
	for _, want := range []string{"12 accepted, 1.3 completed", "AGENT", "agent-00", "1/0/4/0", "more agents", "WHY", "ticket-00", "more need attention"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if all := topLines(crowded(100), 0, 0); len(all) != 1+3+2*101 {
		t.Errorf("%d lines where nothing is to be cut", len(all))
	}
}

func TestFrame(t *testing.T) {
	if got, want := frame([]string{"a", "b"}), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWatchKeys(t *testing.T) {
	for _, keys := range []string{"q", "xyzQ", "\x1b[A\x03", "\x04", ""} {
		ends := make(chan struct{})
		go watchKeys(strings.NewReader(keys), ends)
		<-ends
	}
	in, out := io.Pipe()
	ends := make(chan struct{})
	go watchKeys(in, ends)
	if _, err := out.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ends:
		t.Error("it ended at another key")
	default:
	}
	_ = out.Close()
	<-ends
}

// TestTopLoop: an engine that does not answer is part of the picture, and what was
// known stays in it.
func TestTopLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []error{nil, broker.ErrUnreachable, fmt.Errorf("view: %w", context.DeadlineExceeded), nil}
		var shown []string
		ctx, end := context.WithCancel(t.Context())
		i := 0
		err := topLoop(ctx, time.Second, func(context.Context) (topView, error) {
			if i == len(answers) {
				return topView{}, context.Canceled
			}
			err := answers[i]
			i++
			return topView{At: topNoon, Open: int64(i)}, err
		}, func(v topView) error {
			shown = append(shown, fmt.Sprintf("%d %t", v.Open, v.Note != ""))
			if i == len(answers) {
				end()
			}
			return nil
		})
		if want := []string{"1 false", "1 true", "1 true", "4 false"}; !errors.Is(err, context.Canceled) || !slices.Equal(shown, want) {
			t.Errorf("%v, %v; want %v", shown, err, want)
		}
		broken := errors.New("broken")
		if err := topLoop(t.Context(), time.Second, func(context.Context) (topView, error) { return topView{}, broken }, nil); !errors.Is(err, broken) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestTopRates(t *testing.T) {
	r := newTopRates(topNoon.Add(-time.Hour), 3)
	seq := uint64(0)
	add := func(at time.Time, agent string, events ...protocol.Event) {
		t.Helper()
		seq++
		state := protocol.State{Agent: agent}
		state.Ticket = protocol.NewTicket()
		body, err := record.Encode(protocol.Record{ID: "id", Events: events, State: state})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.take(broker.Entry{Ticket: state.Ticket, Seq: seq, At: at, Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	add(topNoon.Add(-2*time.Minute), "clerk", &protocol.Accepted{Agent: "clerk"}) // too long ago
	add(topNoon.Add(-30*time.Second), "clerk", &protocol.Accepted{Agent: "clerk"}, &protocol.Completed{})
	select {
	case <-r.caught:
		t.Error("it has caught up before the third entry")
	default:
	}
	add(topNoon.Add(-20*time.Second), "other", &protocol.Rejected{Agent: "clerk"}, &protocol.Failed{}, &protocol.Stuck{})
	<-r.caught
	all, by := r.now(topNoon)
	if want := (rates{1, 1, 2}); all != want || by["clerk"] != (rates{1, 1, 1}) || by["other"] != (rates{0, 0, 1}) {
		t.Errorf("all %+v, want %+v; by agent %+v", all, want, by)
	}
	if all, by := r.now(topNoon.Add(2 * time.Minute)); all != (rates{}) || len(by) > 0 {
		t.Errorf("two minutes later %+v, %+v", all, by)
	}
	if len(r.noticedTickets()) != 1 {
		t.Errorf("stuck: %v", r.noticedTickets())
	}
	r.since = topNoon.Add(-30 * time.Second) // less than a minute is known
	if _, by := r.now(topNoon); by["clerk"] != (rates{2, 2, 2}) {
		t.Errorf("of half a minute %+v", by)
	}
}

func TestTopAgents(t *testing.T) {
	statuses := []api.AgentStatus{
		{Profile: protocol.Profile{ID: "busy"}, Availability: api.Present, Workers: 2, Slots: 4, Busy: 3, Queued: 4},
		{Profile: protocol.Profile{ID: "idle"}, Availability: api.Absent}, {Profile: protocol.Profile{ID: "paused"}, Availability: api.Paused},
	}
	queues := []broker.QueueStatus{
		{Agent: "busy", Lane: protocol.High, Depth: 3, Delivered: 3, Oldest: topNoon.Add(-time.Hour)},
		{Agent: "busy", Lane: protocol.Low, Depth: 1, Oldest: topNoon.Add(-time.Minute), Waiting: topNoon.Add(-time.Minute)},
		{Agent: "ghost", Lane: protocol.Normal, Depth: 9, Oldest: topNoon, Waiting: topNoon},
	}
	agents := topAgents(statuses, queues, map[string]rates{"busy": {Accepted: 3}})
	var got []string
	for _, a := range agents {
		got = append(got, fmt.Sprintf("%s %s %d %d/%d %d %s", a.Agent, a.Availability, a.Workers, a.Busy, a.Slots, a.Queued, explain.Ago(a.Waiting, topNoon)))
	}
	want := []string{"ghost unknown 0 0/0 9 0s", "busy present 2 3/4 4 1m", "idle absent 0 0/0 0 ", "paused paused 0 0/0 0 "}
	if !slices.Equal(got, want) || agents[1].Accepted != 3 {
		t.Errorf("%q (%v accepted), want %q", got, agents[1].Accepted, want)
	}
}
