package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	self, repair bool
	skip, mend   []string
}

func newDoctor(a *app) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the engine, the supervisors, the agents and the handoffs",
		Long: `Doctor checks everything that handoffs depend on, one line each, and says what to do
where something is amiss. It changes nothing. The checks, and what they look for:

  engine       it answers, and soon enough       queues    none is stuck, paused or full
  version      of the server                     workers   no agent has offers and no
  store        JetStream is on, and has room               worker to take them
  streams      there, and as they should be      paused    none has offers
  space        none is near a limit              takers    every offer is at an agent
  replicas     up to date                        strays    nothing is in the streams that
  fsync        a power cut takes nothing                   is not Handoff's
  clock        ours and the engine's agree       stuck     no handoff is
  supervisors  there, and in time                late      no handoff is
  breakers     each is closed                    gates     each can open, and no lock
  deadlocks    none waits for another                      is left over
  lineages     none is deep                      age       nothing open is near its end
                                                 ledger    every handoff can be read
                                                 index     one answers, and is in time

warn: it works, and something should be done. fail: something does not work, or soon
will not. --skip leaves out what you know of and accept.

--self checks this process alone: the program, its settings, its connection, its clock.
Where $HANDOFF_METRICS says at what address a process here shows how it is (--metrics),
--self asks that one instead, within 5 s: whether its loops turn and it can do its work.
That is for the health check of a container; it connects to nothing else.
--repair asks for a reconcile of every handoff now: offers are put back where they belong,
and every handoff that is open, or that owes something, is woken. It decides nothing,
and is safe while everything runs; supervisors do the rest.

--mend TICKET is for a handoff whose last entry in the ledger cannot be read: it goes
back to the last entry that can, and on from there. What stands behind that did not
happen then. An entry of a newer version is refused: update this program instead.

It reads the head of every handoff in the ledger.

Exit codes: 0 all is well; 1 a check says warn or fail.`,
		Example: `  handoff doctor
  handoff doctor --skip fsync -o jsonl | jq -r 'select(.status != "ok") | .message'
  handoff doctor --repair
  handoff doctor --mend 5f0c…
  handoff doctor --self`,
		Args:    takes(),
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), ledgerWithin)
			defer cancel()
			switch {
			case o.self:
				return a.findings(a.examineSelf(ctx, o.skip))
			case len(o.mend) > 0:
				return a.mend(ctx, o.mend)
			case o.repair:
				return a.repair(ctx)
			}
			return a.findings(doctor.Judge(doctor.Examine(ctx, a.access(), o.skip), o.skip))
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.self, "self", false, "check this process alone")
	fs.BoolVar(&o.repair, "repair", false, "have every handoff looked at now, and check nothing")
	fs.StringArrayVar(&o.mend, "mend", nil, "go back to the last entry of this `TICKET` that can be read; repeatable")
	fs.StringArrayVar(&o.skip, "skip", nil, "leave out this `CHECK`; repeatable")
	a.words(cmd, "skip", doctor.CheckNames()...)
	return cmd
}

func (o *doctorOptions) check(*cobra.Command, []string) error {
	if o.self && (o.repair || len(o.mend) > 0) {
		return usagef("--self changes nothing: leave out --self, or --repair and --mend")
	}
	for _, name := range o.skip {
		if !slices.Contains(doctor.CheckNames(), name) {
			return usagef("--skip %s: the checks are %s", name, strings.Join(doctor.CheckNames(), ", "))
		}
	}
	return nil
}

// checksFailedError is the error of a diagnosis that is not all well.
type checksFailedError struct{ fails, warns, all int }

func (e *checksFailedError) Error() string {
	var parts []string
	if e.fails > 0 {
		parts = append(parts, explain.Count(e.fails, "check")+" failed")
	}
	if e.warns > 0 {
		parts = append(parts, explain.Count(e.warns, "warning"))
	}
	return fmt.Sprintf("%s, of %s", strings.Join(parts, " and "), explain.Count(e.all, "check"))
}

// access is how the doctor reaches the engine of this command line.
func (a *app) access() doctor.Access {
	conn := a.conn.resolve(a.env)
	diagnose := func(ctx context.Context, without ...string) (jetstream.Diagnosis, error) {
		nc, err := conn.dial(ctx)
		if err != nil {
			return jetstream.Diagnosis{}, err
		}
		defer nc.Close()
		return jetstream.Diagnose(ctx, nc, without...)
	}
	strays := func(ctx context.Context, d *lifecycle.Directory) ([]jetstream.Strays, error) {
		return a.engine.Strays(ctx, d)
	}
	return doctor.Access{Where: conn.where(), Diagnose: diagnose, Open: a.connect, Strays: strays}
}
