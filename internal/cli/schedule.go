package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	_ "time/tzdata" // a container may have no time zones, and a schedule needs those that it was put with

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
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
