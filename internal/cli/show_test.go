package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// crooked is a handoff that went a long way: a failed attempt, a question, a lost
// worker, a refusal, another agent, a person.
func crooked(t *testing.T) *tale {
	g := newTale(t)
	g.agent("reviewer", can("review")).agent("ada", can("review")).worker("reviewer", whyHolder, 1).worker("ada", "w2", 0)
	g.submit(func(s *protocol.Summary) {
		s.Requires = []protocol.RequiredCapability{{ID: "review"}}
		s.Overrides.BackoffSpreadPct = to(0)
	})
	g.pass(10*time.Second).accept().pass(time.Minute).fail("exit", "exit status 1", true).look()
	g.pass(2 * time.Second).look().pass(3 * time.Second)
	g.ack(protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}}, false).pass(5 * time.Minute)
	g.act(lifecycle.Answer(g.state, g.d.At(g.now), protocol.Answer{By: "lead", Question: lifecycle.QuestionOf(g.state).N, Text: "main"})).pass(time.Second)
	g.accept().pass(30 * time.Second).gone(whyHolder).look().pass(4 * time.Second)
	g.ack(protocol.Ack{Status: protocol.AckRejected, Reason: "no"}, false).look().pass(time.Second)
	g.act(lifecycle.TakeNow(g.state, g.d.At(g.now), lifecycle.Claimant{Agent: protocol.Human, Holder: "w3", LeaseMS: 30_000}, "")).pass(20 * time.Second)
	return g.act(lifecycle.Complete(g.state, g.d.At(g.now), protocol.Completed{Meta: g.meta(), Status: protocol.Success, Usage: &protocol.Usage{Tokens: 7}}, nil))
}

// TestDossier: the events of a crooked way, put in order.
func TestDossier(t *testing.T) {
	g := crooked(t)
	d := dossier.TimelineOf(g.changes, g.now.Add(time.Hour))
	var got []string
	for _, w := range d.Hops {
		got = append(got, "at "+w.Agent+" "+w.Reason)
	}
	for _, a := range d.Attempts {
		got = append(got, fmt.Sprintf("%d %s/%d %s %s", a.N, a.Agent, a.Attempt, a.How, explain.Millis(a.TookMS)))
	}
	for _, q := range d.Questions {
		got = append(got, q.Agent+" "+q.Asks+" "+q.Answer.Text)
	}
	for _, r := range d.Routings {
		got = append(got, "chose "+r.Choice.Choice+": "+routingWords(r.Choice))
	}
	want := []string{"at reviewer submitted", "at ada reroute", "at human taken",
		"1 reviewer/1 failed 1m", "2 reviewer/2 lost 30s", "3 human/1 completed 20s",
		"reviewer context (which branch?) main",
		"chose ada: ada 1.00 (1 worker, 0 busy), without reviewer"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	s := d.Stages
	if sum := s.Gate + s.Queue + s.Acknowledge + s.Work + s.Answers + s.Deferred + s.Children + s.Backoff + s.Deciding; sum != s.Whole {
		t.Errorf("the stages are %d in all, the whole is %d: %+v", sum, s.Whole, s)
	}
	if s.Queue != 19_000 || s.Work != 110_000 || s.Answers != 300_000 || s.Backoff != 2_000 {
		t.Errorf("stages %+v", s)
	}
}

// TestShowFits: what people read stays within 80 columns, but for words that are longer.
func TestShowFits(t *testing.T) {
	g := crooked(t)
	v := dossier.Handoff{Ticket: whyTicket, State: dossier.StateOf(g.state), Changes: g.changes, Timeline: dossier.TimelineOf(g.changes, g.now),
		Decoded: &protocol.Package{Reason: strings.Repeat("because of this ", 20)}}
	var out bytes.Buffer
	a := &app{out: &out, format: formatText, env: func(string) string { return "" }}
	if err := a.whole(v, false); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if utf8.RuneCountInString(line) > sheetWidth {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	for _, section := range []string{"Handed off", "Agents", "Attempts", "Questions", "Time", "Events (UTC)"} {
		if !strings.Contains(out.String(), "\n"+section+"\n") {
			t.Errorf("no section %s in\n%s", section, out.String())
		}
	}
}
