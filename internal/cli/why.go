package cli

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/explain"
)

func newWhy(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "why TICKET",
		Aliases: []string{"explain"},
		Short:   "Explain why a handoff waits, and its next step",
		Long: `Why explains in a few sentences why a handoff waits, its next step and when that comes
if nothing else happens, and your choices. The next step is no guess: the rules of the
supervisors compute it.

Times are in UTC. With -o json there are ticket, phase, closed, waiting_for (one
word), sentences, next (at, event, to, words) and commands. The words of waiting_for:
approval, limit (a place under a key), agent (none is fit), person, worker (none is
running), resume (the agent is paused), slot (all are busy), taker (a worker that is
free), acknowledgement, start, work, answer, time, children, members, stop (of the
worker, since the end was asked for), decision (of a supervisor), nothing (it is
closed).

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff why 5f0c…
  handoff why 5f0c… -o json | jq -r .next.at`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			explanation, err := s.session.Why(ctx, ticket, time.UTC)
			if err != nil {
				return err
			}
			return a.explanation(explanation)
		}),
	}
}

// hasClock matches a time of day.
var hasClock = regexp.MustCompile(`\b[0-9]{2}:[0-9]{2}\b`)

// whyView is an explanation with its actions as command lines.
type whyView struct {
	explain.Explanation
	Zone     string        `json:"zone"` // of the clocks in the sentences
	Commands []commandView `json:"commands,omitempty"`
}

// commandView is an action that the reader may take.
type commandView struct {
	To  string `json:"to"` // in words: start a worker
	Run string `json:"run"`
}

// explanation prints an explanation.
func (a *app) explanation(e explain.Explanation) error {
	v := whyView{Explanation: e, Zone: time.UTC.String()}
	for _, action := range e.Actions {
		v.Commands = append(v.Commands, commandView{To: action.To, Run: commandLine(action)})
	}
	if !a.text() {
		return a.value(v)
	}
	for _, sentence := range e.Sentences {
		a.paragraph(sentence)
	}
	if slices.ContainsFunc(e.Sentences, hasClock.MatchString) {
		a.printf("Times are in %s.\n", v.Zone)
	}
	if len(v.Commands) == 0 {
		return nil
	}
	a.printf("\n")
	var rows []string
	for _, c := range v.Commands {
		rows = append(rows, "to "+c.To, c.Run)
	}
	return a.commands(rows...)
}
