package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	Self   bool     `flag:"self" doc:"check this process alone"`
	Repair bool     `flag:"repair" doc:"have every handoff looked at now, and check nothing"`
	Mend   []string `flag:"mend,,each" doc:"go back to the last entry of this {TICKET} that can be read; repeatable"`
	Skip   []string `flag:"skip,,each" doc:"leave out this {CHECK}; repeatable"`
}

func newDoctor(a *app) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the engine, the supervisors, the agents and the handoffs",
		Long: `Doctor checks everything that handoffs depend on, one line each, and names a remedy for each
problem. It changes nothing. The checks, with the state that is ok:

  engine       answers in time
  version      a release that is new enough
  store        JetStream is on, and has room
  streams      exist, with the right settings
  space        no stream is near a limit
  replicas     up to date
  fsync        a power cut loses nothing
  clock        agrees with the engine's
  supervisors  run, and keep up
  breakers     all are closed
  limits       no key is paused
  schedules    fire in time, and their handoffs are accepted
  signals      are decided, and the handoffs of their rules accepted
  deadlocks    no handoffs wait for each other
  lineages     no lineage is very deep
  people       counts handoffs for a person
  queues       none is stuck, paused or full
  workers      each agent with offers has a worker
  paused       no paused agent has offers
  takers       each offer is for an agent
  strays       no foreign messages in the streams
  stuck        every handoff can go on
  late         no decision is late
  gates        each can open, no lock is left
  age          the ledger keeps all open ones
  ledger       every handoff can be read
  index        one answers, and keeps up

warn: it works, and something should be done. fail: something does not work, or soon
will not. --skip leaves out a check that you accept.

--self checks this process alone: the program, its settings, its connection, its clock.
If $HANDOFF_METRICS has the address of a process here (--metrics), --self asks that
process instead, within 5 s: whether its loops turn and it can do its work. That is for
the health check of a container; it connects to nothing else.

--repair asks for a
reconcile of every handoff now: offers are put back where they belong, and every handoff
that is open, or that owes something, is woken. It decides nothing, and is safe while
everything runs; supervisors do the rest.

--mend TICKET is for a handoff whose last entry in the ledger cannot be read: it goes
back to the last entry that can, and on from there. Later entries did not happen then. An entry of a newer version is refused: update this program instead.

It reads the head of every handoff in the ledger.

Exit codes: 0 all is well; 1 a check warns or fails.`,
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
			case o.Self:
				return a.findings(a.examineSelf(ctx, o.Skip))
			case len(o.Mend) > 0:
				return a.mend(ctx, o.Mend)
			case o.Repair:
				return a.repair(ctx)
			}
			return a.findings(doctor.Judge(doctor.Examine(ctx, a.access(), o.Skip), o.Skip))
		},
	}
	bind(cmd.Flags(), &o)
	a.words(cmd, "skip", doctor.CheckNames()...)
	return cmd
}

func (o *doctorOptions) check(*cobra.Command, []string) error {
	if o.Self && (o.Repair || len(o.Mend) > 0) {
		return usagef("--self changes nothing: leave out --self, or --repair and --mend")
	}
	for _, name := range o.Skip {
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
	return doctor.Access{Where: conn.where(), Diagnose: diagnose, Open: a.connect, Strays: strays, Patience: a.timeout()}
}

// diagnosisView holds the findings of doctor, for programs.
type diagnosisView struct {
	OK     bool             `json:"ok"`
	Checks []doctor.Finding `json:"checks"`
}

// findings prints the findings. The error is nil if all is well.
func (a *app) findings(all []doctor.Finding) error {
	failed := &checksFailedError{all: len(all)}
	for i, f := range all {
		all[i].Do = toDo(f)
		switch f.Status {
		case doctor.StatusFail:
			failed.fails++
		case doctor.StatusWarn:
			failed.warns++
		}
	}
	well := failed.fails+failed.warns == 0
	var err error
	switch a.format {
	case formatText:
		a.findingLines(all)
	case formatJSON:
		err = a.value(diagnosisView{OK: well, Checks: all})
	default:
		err = list(a, all)
	}
	if err == nil && !well {
		err = failed
	}
	return err
}

// toDo returns the advice of a finding, with its commands.
func toDo(f doctor.Finding) string {
	var commands []string
	for _, action := range f.Actions {
		commands = append(commands, commandLine(action))
		if action.Op == explain.OpSupervise || action.Op == explain.OpIndex {
			commands = append(commands, "handoff dev has one")
		}
	}
	if len(commands) == 0 {
		return f.Do
	}
	return f.Do + " (" + strings.Join(commands, "; ") + ")"
}

func (a *app) findingLines(all []doctor.Finding) {
	widest := 0
	for _, f := range all {
		widest = max(widest, len(f.Check))
	}
	indent := strings.Repeat(" ", statusWidth+widest+2*columnGap)
	for _, f := range all {
		texts := []string{f.Message}
		if f.Do != "" {
			texts = append(texts, "do: "+f.Do)
		}
		shorten := a.shortens(texts...)
		begin := fmt.Sprintf("%s  %-*s  ", a.health(f.Status), widest, f.Check)
		for _, text := range texts {
			a.hang(begin, indent, shorten(text), a.fitTo())
			begin = indent
		}
	}
	a.summed(all)
}

// summed is the last line: whether all is well, and how many wait for a person.
func (a *app) summed(all []doctor.Finding) {
	bad, people := 0, ""
	for _, f := range all {
		if f.Status != doctor.StatusOK {
			bad++
		}
		if f.Check == doctor.CheckPeople && len(f.About) > 0 {
			people = f.Message + ": handoff inbox"
		}
	}
	words := explain.Count(len(all), "check")
	switch {
	case bad > 0:
		words += fmt.Sprintf(", %d not ok", bad)
	case len(all) > 1:
		words += ", all ok"
	default:
		words += ", ok"
	}
	if people == "" {
		a.printf("%s\n", words)
		return
	}
	a.printf("%s; %s\n", words, a.coloured(amber, protocol.Printable(people)))
}

// statusWidth is the width of a printed status.
const statusWidth = 4

// health is a status as a terminal shows it, four columns wide.
func (a *app) health(h doctor.Status) styled {
	return a.coloured(map[doctor.Status]string{doctor.StatusOK: green, doctor.StatusWarn: amber, doctor.StatusFail: red}[h], fmt.Sprintf("%-*s", statusWidth, h))
}

// repair has every handoff looked at, and sees that a supervisor is there to look.
func (a *app) repair(ctx context.Context) error {
	b, done, err := a.connectWith(ctx, broker.Config{Log: slog.New(slog.NewTextHandler(a.err, nil))})
	if err != nil {
		return err
	}
	defer done()
	repaired, err := supervisor.Repair(ctx, b, a.engine, a.log(false))
	if err != nil {
		return err
	}
	if a.text() {
		a.printf("%s, %d open; %s woken, and will be looked at within a second\n",
			explain.Count(repaired.Handoffs, "handoff"), repaired.Open, explain.Is(fmt.Sprint(repaired.Woken), repaired.Woken))
		if repaired.Removed > 0 {
			a.printf("%s removed from the queues\n", explain.Was(explain.Count(repaired.Removed, "ended offer"), repaired.Removed))
		}
	} else if err := a.value(repaired); err != nil {
		return err
	}
	if repaired.Failed > 0 {
		return fmt.Errorf("%s could not be helped; see above", explain.Count(repaired.Failed, "handoff"))
	}
	f := doctor.Supervisors(doctor.ExamineServer(ctx, a.access()))
	if f.Status == doctor.StatusFail {
		return errors.New("no supervisor reconciles them yet: " + f.Message + "; " + toDo(f))
	}
	return nil
}

// mended is a handoff that --mend was given.
type mended struct {
	Ticket string         `json:"ticket"`
	Seq    uint64         `json:"seq"` // of its head
	Phase  protocol.Phase `json:"phase"`
}

// mend takes handoffs back to the last entries that can be read.
func (a *app) mend(ctx context.Context, tickets []string) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, ticket := range tickets {
		if ticket, err = a.ticket(ctx, ticket); err != nil {
			return err
		}
		head, err := b.RepairHead(ctx, ticket)
		if err == nil {
			err = a.line(mended{ticket, head.Seq, head.State.Phase}, "%s is %s, by entry %d of the ledger\n", ticket, explain.Phase(head.State), head.Seq)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// examineSelf examines this process and how it reaches the engine, or the process that
// the environment names.
func (a *app) examineSelf(ctx context.Context, skip []string) []doctor.Finding {
	var all []doctor.Finding
	add := func(name string, f doctor.Finding) {
		f.Check = name
		all = append(all, f)
	}
	add("program", judgeProgram())
	add("settings", a.judgeSettings())
	if addr := a.env(metricsEnv); addr != "" {
		add("process", judgeProcess(ctx, addr))
		return all
	}
	x := doctor.ExamineServer(ctx, a.access(), "streams", "consumers")
	return append(all, doctor.Judge(x, append(slices.Clone(skip), slices.DeleteFunc(doctor.CheckNames(), aboutConnection)...))...)
}

// aboutConnection reports whether a check of the engine concerns this process.
func aboutConnection(name string) bool {
	return slices.Contains([]string{"engine", "version", "store", "clock"}, name)
}

func judgeProgram() doctor.Finding {
	path, err := os.Executable()
	if err != nil {
		return doctor.Warn("start it by its path", "does not know where it is: %v", err)
	}
	return doctor.OK("handoff %s, protocol %s, %s, %s/%s, at %s", programVersion(), protocol.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, path)
}

// programVersion returns the version that this program was built from.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// judgeSettings reports the engine's address and the setting it comes from.
func (a *app) judgeSettings() doctor.Finding {
	given, conn := a.conn, a.conn.resolve(a.env)
	why := "nothing else is set"
	switch {
	case given.Context != "":
		why = "--context says so"
	case given.URL != "":
		why = "--nats says so"
	case conn.Context != "":
		why = "$NATS_CONTEXT says so"
	case conn.URL != "":
		why = "$NATS_URL says so"
	}
	if err := conn.checkURL(); err != nil {
		return doctor.Fail("write nats://HOST:4222", "%v", err)
	}
	for name, path := range map[string]string{"credentials file": conn.Creds, "certificate authority": conn.TLSCA} {
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			return doctor.Fail("name the file: --creds, --tlsca, $NATS_CREDS, $NATS_CA", "the %s cannot be read: %v", name, err)
		}
	}
	if me := a.env("HANDOFF_AGENT"); me != "" {
		if err := protocol.CheckAgent("HANDOFF_AGENT", me); err != nil {
			return doctor.Fail("set $HANDOFF_AGENT to the name of an agent, or to nothing", "%v", err)
		}
		return doctor.OK("the engine is looked for at %s (%s); commands speak for %s ($HANDOFF_AGENT)", conn.where(), why, me)
	}
	return doctor.OK("the engine is looked for at %s (%s)", conn.where(), why)
}

// whereToAsk is the URL of a process that listens at addr, from its own machine: one
// that listens everywhere is asked on loopback.
func whereToAsk(addr string) (string, error) {
	complete, err := telemetry.ListenAddress(addr)
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(complete)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case port == "0":
		return "", errors.New("port 0 is any port: name the port to ask")
	case ip != nil && ip.IsUnspecified() && ip.To4() == nil:
		host = "::1"
	case ip != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// judgeProcess asks the process that listens at addr, the value of its --metrics or
// $HANDOFF_METRICS.
func judgeProcess(ctx context.Context, addr string) doctor.Finding {
	where, err := whereToAsk(addr)
	if err != nil {
		return doctor.Fail("set $"+metricsEnv+" to the address that the process shows its figures at, such as 127.0.0.1:9090", "$%s: %v", metricsEnv, err)
	}
	return doctor.Process(ctx, where)
}
