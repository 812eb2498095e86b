package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newSignal(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "signal",
		Short: "Hand off when something happens",
		Long: `A rule begins one handoff for each signal of a name. The key of the handoff is
signal:RULE:ID, with the id of the signal, and its source is signal: a signal that is
sent again begins nothing. See docs/how-to/signals.md.`,
	}, newSignalOn(a), newSignalSend(a), newSignalList(a),
		one(a, "signal show", "order", "Show a rule, its last handoff and its last refusal", "", (*api.Session).Rule, a.rule),
		one(a, "signal pause", "order", "Stop a rule from beginning handoffs", "The signals of the pause begin nothing. Open handoffs continue.", (*api.Session).PauseRule, a.rule),
		one(a, "signal resume", "order", "Let a paused rule begin handoffs again", "", (*api.Session).ResumeRule, a.rule),
		one(a, "signal rm", "order", "Remove a rule", "Its open handoffs continue.", (*api.Session).RemoveRule, func(v api.RuleStatus) error {
			return a.line(v, "removed %s\n", v.Name)
		}))
}

func newSignalOn(a *app) *cobra.Command {
	var request api.PutRule
	var file, condition string
	cmd := &cobra.Command{
		Use:   "on NAME -f FILE",
		Short: "Begin a handoff for each signal of a name",
		Long: fmt.Sprintf(`On creates a rule, or replaces it. FILE is a package in which {"$": POINTER} is the value
of the payload at that JSON Pointer, and {"$": ""} the whole payload. The package has no
source, key, start, deadline or parent: each handoff has its own.

--if is a condition as in next: it compares a field of the payload.

A rule begins at most --rate handoffs a minute. Further signals wait; none is lost.

Limits: %d rules; a NAME is 1 to %d of A-Z a-z 0-9 _ and -; a template of %d KiB with %d
values from the payload.

Exit code 9: a field that a rule cannot have; nothing is changed.`, protocol.RulesMax, protocol.IDBytesMax, protocol.TemplateBytesMax>>10, protocol.TemplateValuesMax),
		Example: `  handoff signal on order --if '{"variable": "total", "gt": 100}' -f review.json`,
		Args:    takes("a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			if file == "" {
				return usagef("handoff signal on needs the template: -f FILE, or - for stdin")
			}
			body, err := a.read(file)
			if err != nil {
				return err
			}
			if condition != "" {
				request.If = new(protocol.NextCondition)
				if err := protocol.DecodeStrict([]byte(condition), "if", protocol.RuleBytesMax, request.If); err != nil {
					return inField(err, "if", "")
				}
			}
			request.Name, request.Package = args[0], body
			v, err := s.PutRule(ctx, request)
			return printed(a, v, err, a.rule)
		}),
	}
	bind(cmd.Flags(), &request)
	cmd.Flags().StringVar(&condition, "if", "", "begin a handoff only if the payload satisfies this `CONDITION` in JSON")
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the template from a JSON `FILE`, or stdin with -; required")
	return cmd
}

func newSignalSend(a *app) *cobra.Command {
	var request api.SendSignal
	var file string
	cmd := &cobra.Command{
		Use:   "send NAME",
		Short: "Send a signal; prints its id",
		Long: fmt.Sprintf(`Send stores a signal, and returns when it is stored: a supervisor then begins the
handoffs of its rules. A signal whose name no rule has is counted, and begins nothing.

Limits: a payload of %d KiB; an id of %d visible ASCII characters; %d signals wait at
most, and %d of one name; they wait for %d days at most.`, protocol.SignalBytesMax>>10, protocol.SignalIDBytesMax, broker.SignalsMax, broker.SignalsOfNameMax, int(broker.SignalAge.Hours()/24)),
		Example: `  handoff signal send order --id 1234 -f order.json`,
		Args:    takes("a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			request.Name = args[0]
			if file != "" {
				body, err := a.read(file)
				if err != nil {
					return err
				}
				request.Payload = body
			}
			if request.Parent == "" {
				request.Parent = a.env("HANDOFF_TICKET")
			}
			sent, err := s.SendSignal(ctx, request)
			return printed(a, sent, err, func(sent api.SentSignal) error { return a.line(sent, "%s\n", sent.ID) })
		}),
	}
	bind(cmd.Flags(), &request)
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the payload from a JSON `FILE`, or stdin with -")
	return cmd
}

func newSignalList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the rules, and count the signals that wait",
		Example: `  handoff signal list`,
		Args:    takes(),
		RunE: onAll(a, (*api.Session).Rules, func(all api.RuleList) error {
			err := a.table(rowsOf("RULE|SIGNAL|RATE|LAST|FIRED|UNMATCHED|PAUSED|REFUSED", all.Rules, func(v api.RuleStatus) []any {
				last := ""
				switch {
				case !v.PausedAt.IsZero():
					last = "paused"
				case v.Last != nil:
					last = explain.Instant(v.Last.At)
				}
				return []any{v.Name, v.Signal, fmt.Sprintf("%d/min", v.Rate), last, v.FiredCount, v.UnmatchedCount, v.PausedCount, v.RefusedCount}
			}))
			a.printf("%s waiting; %d of an unknown name\n", explain.Count(all.Waiting, "signal"), all.Unknown.Count)
			return err
		}),
	}
}

// rule prints a rule.
func (a *app) rule(v api.RuleStatus) error {
	a.printf("%s  on the signal %s; at most %d a minute\n", v.Name, v.Signal, v.Rate)
	if v.If != nil {
		a.printf("  if  %s\n", v.If.Words())
	}
	if !v.PausedAt.IsZero() {
		a.printf("  paused  since %s\n", explain.Instant(v.PausedAt))
	}
	if !v.FullUntil.IsZero() {
		a.printf("  full  further signals wait until %s\n", explain.Instant(v.FullUntil))
	}
	if v.Last != nil {
		a.printf("  last  %s, the signal %s as %s\n", explain.Instant(v.Last.At), v.Last.ID, v.Last.Ticket)
	}
	if v.Refused != nil {
		a.printf("  refused  %s, the signal %s: %s: %s\n", explain.Instant(v.Refused.At), v.Refused.ID, v.Refused.Code, v.Refused.Message)
	}
	a.printf("  %d fired, %d unmatched, %d paused, %d refused\n", v.FiredCount, v.UnmatchedCount, v.PausedCount, v.RefusedCount)
	return nil
}
