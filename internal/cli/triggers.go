package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	_ "time/tzdata" // a container may have no time zones, and a schedule needs those that it was put with

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newSchedule(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "schedule",
		Short: "Hand off again and again, at set times",
		Long: `A schedule submits a package at the instants of a cron expression. Each instant is one
handoff, however many supervisors run: its key is schedule:NAME:INSTANT, and its source
is schedule. See docs/how-to/schedules.md.`,
	}, newSchedulePut(a), newScheduleList(a),
		one(a, "schedule show", "report", "Show a schedule, its next instants and its last handoff", "", (*api.Session).Schedule, a.schedule),
		one(a, "schedule pause", "report", "Stop a schedule from firing", "Its open handoffs continue.", (*api.Session).PauseSchedule, a.schedule),
		one(a, "schedule resume", "report", "Let a paused schedule fire again", "The instants of the pause are not made up.", (*api.Session).ResumeSchedule, a.schedule),
		newScheduleRun(a),
		one(a, "schedule rm", "report", "Remove a schedule", "Its open handoffs continue.", (*api.Session).RemoveSchedule, func(v api.ScheduleStatus) error {
			return a.line(v, "removed %s\n", v.Name)
		}))
}

func newSchedulePut(a *app) *cobra.Command {
	var request api.PutSchedule
	var pkg scheduledPackage
	cmd := &cobra.Command{
		Use:   "put NAME --cron EXPRESSION {-f FILE | --to AGENT --reason WHY --task WHAT}",
		Short: "Create a schedule, or replace it",
		Long: fmt.Sprintf(`Put stores a package and the times at which it is submitted, and prints the next three.
The shortest period is one minute. The package has no source, key, start, deadline or
parent: each handoff has its own.

Where the clock of the zone changes, a fixed hour fires once: a time that is omitted
fires at the change, and one that is repeated fires the first time. An expression whose
minute or hour begins with * follows real time.

Put again replaces the schedule. If neither --cron nor --zone changes, it goes on;
otherwise its instants count from now.

Limits: %d schedules; a NAME is 1 to %d of A-Z a-z 0-9 _ and -; a package of %d KiB; at
most %d missed instants are made up (--missed all), and %d wait (--overlap queue).

Exit code 9: a field that a schedule cannot have; nothing is changed.`, protocol.SchedulesMax, protocol.IDBytesMax, protocol.SchedulePackageBytesMax>>10, protocol.ScheduleMissedMax, protocol.ScheduleWaitingMax),
		Example: `  handoff schedule put report --cron "0 9 * * 1-5" --zone Europe/Berlin -f report.json
  handoff schedule put sweep --cron @daily --to janitor --reason "each night" --task "sweep"`,
		Args: takes("a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			body, err := pkg.read(a)
			if err != nil {
				return err
			}
			request.Name, request.Package = args[0], body
			v, err := s.PutSchedule(ctx, request)
			return printed(a, v, err, a.schedule)
		}),
	}
	bind(cmd.Flags(), &request)
	bind(cmd.Flags(), &pkg)
	return cmd
}

// scheduledPackage is the package of a schedule: a file, or the fields that most packages have.
type scheduledPackage struct {
	File   string `flag:"file,f" doc:"read the package from a JSON {FILE}, or stdin with -"`
	To     string `flag:"to" doc:"in place of -f: the {AGENT} to hand to"`
	Reason string `flag:"reason" doc:"in place of -f: {WHY} it is handed off"`
	Task   string `flag:"task" doc:"in place of -f: {WHAT} is to be done"`
}

func (p scheduledPackage) read(a *app) ([]byte, error) {
	switch fields := p.To + p.Reason + p.Task; {
	case p.File != "" && fields != "":
		return nil, usagef("-f has the whole package; give it, or --to, --reason and --task")
	case p.File != "":
		return a.read(p.File)
	case fields == "":
		return nil, usagef("handoff schedule put needs the package: -f FILE (- is stdin), or --to, --reason and --task")
	}
	return protocol.EncodePackage(protocol.Package{Target: protocol.Target{Agent: p.To}, Reason: p.Reason, Task: protocol.Task{Description: p.Task}})
}

func newScheduleList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the schedules",
		Example: `  handoff schedule list`,
		Args:    takes(),
		RunE: onList(a, (*api.Session).Schedules, func(all []api.ScheduleStatus) error {
			return a.table(rowsOf("SCHEDULE|CRON|ZONE|NEXT|LAST|FIRED|MISSED|SKIPPED|REFUSED", all, func(v api.ScheduleStatus) []any {
				next, last := "paused", ""
				if len(v.Next) > 0 {
					next = explain.Instant(v.Next[0])
				}
				if v.Last != nil {
					last = explain.Instant(v.Last.At)
				}
				return []any{v.Name, v.Cron, cmp.Or(v.Zone, "UTC"), next, last, v.FiredCount, v.MissedCount, v.SkippedCount, v.RefusedCount}
			}))
		}),
	}
}

func newScheduleRun(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "run NAME",
		Short: "Submit the package of a schedule now; prints the ticket",
		Long: `Run submits the package in addition to the instants of the schedule, even if it is
paused or its previous handoff is open. The schedule does not change.`,
		Example: `  handoff schedule run report`,
		Args:    takes("a NAME"),
		RunE:    onNamed(a, (*api.Session).RunSchedule, func(s protocol.State) error { return a.line(s, "%s\n", s.Ticket) }),
	}
}

// schedule prints a schedule.
func (a *app) schedule(v api.ScheduleStatus) error {
	a.printf("%s  %s in %s; overlap: %s; missed: %s\n", v.Name, v.Cron, cmp.Or(v.Zone, "UTC"), cmp.Or(v.Overlap, protocol.OverlapSkip), cmp.Or(v.Missed, protocol.MissedOnce))
	next := "paused since " + explain.Instant(v.PausedAt)
	if v.PausedAt.IsZero() {
		var texts []string
		for _, at := range v.Next {
			texts = append(texts, explain.Instant(at))
		}
		next = strings.Join(texts, ", ")
	}
	a.printf("  next  %s\n", next)
	if !v.LateSince.IsZero() {
		a.printf("  late  no supervisor has fired it since %s\n", explain.Instant(v.LateSince))
	}
	if v.Last != nil {
		a.printf("  last  %s, as %s\n", explain.Instant(v.Last.At), v.Last.Ticket)
	}
	if v.Refused != nil {
		a.printf("  refused  %s: %s: %s\n", explain.Instant(v.Refused.At), v.Refused.Code, v.Refused.Message)
	}
	if len(v.Waiting) > 0 {
		a.printf("  waiting  %d for the end of the previous handoff\n", len(v.Waiting))
	}
	a.printf("  %d fired, %d missed, %d skipped, %d refused\n", v.FiredCount, v.MissedCount, v.SkippedCount, v.RefusedCount)
	return nil
}

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
