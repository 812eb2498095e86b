package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// indexFile is the file of the index in the directory of dev.
const indexFile = "index.db"

// devConfig holds the flags of dev.
type devConfig struct {
	dataFlag   `flag:""`
	Port       int            `flag:"port" doc:"port to listen on, on this machine alone; 0 picks one"`
	Fsync      embedded.Fsync `flag:"fsync" doc:"always, or interval (1 s)"`
	Partitions int            `flag:"partitions" doc:"streams of the ledger, of the queues and of the timers, 1 to 16 (default: as now, 1 for a new ledger)"`
	Lease      time.Duration  `flag:"lease" doc:"default lease of workers (default 30s, or the one before)"`
	Metrics    string         `flag:"metrics" doc:"show figures, /healthz and /readyz at {ADDR}, such as :9090 ($HANDOFF_METRICS; default: nowhere)"`
	NoIndex    bool           `flag:"no-index" doc:"keep no index: handoff list has no answer unless you start handoff index"`
	HTTP       string         `flag:"http" doc:"serve HTTP at {ADDR} of this machine (default 127.0.0.1:7070, or a free port)"`
	NoHTTP     bool           `flag:"no-http" doc:"serve no HTTP"`
	Accept     bool           `flag:"accept-damage" doc:"continue without the entries that the ledger has lost"`
	Verbose    bool           `flag:"verbose,v" doc:"log every append as well"`
	again      bool           // this process has replaced itself, see execAgain
}

func newDev(a *app) *cobra.Command {
	cfg := devConfig{Port: nats.DefaultPort, Fsync: embedded.FsyncAlways}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run an engine, a supervisor and an index here",
		Long: `Dev runs everything that handoffs need in one process: a NATS server with JetStream, a
supervisor, and an index that answers handoff list, conversation and stats, and the
operations over HTTP, on 127.0.0.1:7070 or a free port ("handoff dev env"). It prints
"ready nats://…" on stdout when it serves, and its log on stderr. Ctrl-C drains and
stops it; open handoffs stay in --data and go on with the next start. A start after a
crash first recreates queues and timers from the ledger.

--fsync always (the default) has every change on the disk before it is
acknowledged. --fsync interval syncs once a second: faster, and a power cut may
take the last second with it, acknowledged tickets included. A killed process
loses nothing either way.

--partitions divides a ledger for machines with more than four processors (see handoff
topology ensure --help). It is kept with the data, and only grows.

--lease is the default lease of workers on this engine that choose none
themselves: how long their handoffs stay theirs without a word from them. It is
kept with the data. A claim from the command line has a default of its own.

` + metricsHelp + `

Before anything is offered dev looks for entries that the ledger has lost: in its files,
and against the positions of the index and a witness ($XDG_STATE_HOME/handoff). If there are
any, dev names them and ends, and changes nothing. With --accept-damage it continues
without them: handoffs that the index knows as closed stay closed, and damaged files are
kept in --data. See docs/operations/damage.md.

Exit codes: 0 drained; 1 it could not start, or its server hangs; 11 the ledger is
damaged.`,
		Example: `  handoff dev
  handoff dev --port 0 --data ./data --fsync interval
  handoff dev --lease 5s --verbose
  handoff dev --metrics :9090`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cfg.Fsync != embedded.FsyncAlways && cfg.Fsync != embedded.FsyncInterval:
				return usagef("--fsync %s: must be always (each change is on the disk before it is acknowledged) or interval (every second)", cfg.Fsync)
			case cfg.Port < 0 || cfg.Port > 65535:
				return usagef("--port %d: a port is 0 (any) to 65535", cfg.Port)
			case cfg.Lease != 0 && (cfg.Lease < worker.LeaseMin || cfg.Lease > worker.LeaseMax):
				return protocol.Errorf(protocol.CodeInvalid, "lease", "is %s; a lease is between %s and %s",
					explain.Duration(cfg.Lease), explain.Duration(worker.LeaseMin), explain.Duration(worker.LeaseMax))
			}
			if err := checkPartitions(cfg.Partitions); err != nil {
				return err
			}
			if err := a.devDir(&cfg.dataFlag); err != nil {
				return err
			}
			cfg.resume(a.env(againEnv))
			return a.dev(cmd.Context(), cfg)
		},
	}
	bind(cmd.Flags(), &cfg)
	a.words(cmd, "fsync", string(embedded.FsyncAlways), string(embedded.FsyncInterval))
	cmd.AddCommand(newDevEnv(a))
	return cmd
}

// dev runs the node and the supervisor until ctx ends.
func (a *app) dev(ctx context.Context, cfg devConfig) (err error) {
	redactor, err := a.redactor()
	if err != nil {
		return err
	}
	a.outliveLog()
	log := a.log(cfg.Verbose)
	shown, err := a.show(ctx, cfg.Metrics, log)
	if err != nil {
		return err
	}
	defer shown.close()
	web, err := a.listenDev(ctx, &cfg)
	if err != nil {
		return err
	}
	defer web.close()
	guard := newLedgerGuard(a, cfg, log)
	node, err := embedded.Start(ctx, embedded.Config{
		Dir: cfg.Dir, Port: cfg.Port, Fsync: cfg.Fsync, Log: log,
		Check: func() error { return guard.check(ctx) },
		Prepare: func(ctx context.Context, nc *nats.Conn, unclean bool) error {
			return prepare(ctx, nc, cfg, guard, unclean, log)
		},
	})
	if err != nil {
		return notStarted(err, cfg)
	}
	defer func() {
		stopped := node.Stop()
		if stopped == nil {
			guard.record()
		}
		err = errors.Join(err, stopped)
		log.Info("stopped", "data", cfg.Dir)
	}()
	ctx, stop := a.untilFailed(ctx, node.Failed(), func() error { return execAgain(node.ClientURL(), cfg.Metrics, shown.url(), web.address()) })
	defer stop()
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	traces := a.startTraces(ctx, log)
	defer traces.Stop()
	b, engine, done, err := openNode(ctx, nc, broker.Config{Log: log, Redactor: redactor, Observer: telemetry.MultiObserver(shown.observer(), traces.Observer())})
	if err != nil {
		return err
	}
	defer done()
	shown.engine(b)
	shown.disk(node.Health, node.Failed())
	s, err := supervisor.New(b, engine, supervisor.Config{Log: log, Watch: shown.supervision(b)})
	if err != nil {
		return err
	}
	shown.supervisor(s)
	if !cfg.NoIndex {
		beside, end := context.WithCancel(ctx)
		wait := indexBeside(beside, engine, filepath.Join(cfg.Dir, indexFile), shown, log)
		defer func() { end(); wait() }()
	}
	beside, end := context.WithCancel(ctx)
	wait := web.serve(beside, b, shown, log)
	defer func() { end(); wait() }()
	defer guard.watch(ctx)()
	shown.started()
	log.Info("serving", "data", cfg.Dir, "fsync", cfg.Fsync)
	if !cfg.again {
		if err := a.ready(node.ClientURL(), shown.url(), web.url()); err != nil {
			return err
		}
		a.nextToType(node.ClientURL(), web.url(), cfg.Dir)
	}
	return s.Run(ctx)
}

// dataDir is where dev keeps its ledger without --data.
func (a *app) dataDir() (string, error) {
	home, err := a.dataHome()
	return filepath.Join(home, "dev"), err
}

// ready prints on stdout that a process serves, and at which address. Programs get that of its HTTP.
func (a *app) ready(engine, metrics, web string) error {
	where := map[string]string{"ready": engine}
	if web != "" {
		where["http"] = web
	}
	if metrics != "" {
		where["metrics"] = metrics
		if a.text() {
			a.printf("metrics %s\n", metrics)
		}
	}
	return a.line(where, "ready %s\n", engine)
}

// nextToType prints, for people, the next command, and how other commands find an engine at another
// address than their default. web is where dev serves HTTP, and dir has its data.
func (a *app) nextToType(engine, web, dir string) {
	if !a.text() {
		return
	}
	export := ""
	if engine != jetstream.DefaultURL {
		export = "export NATS_URL=" + engine + "; "
	}
	a.notef("handoff: next, in another terminal: %shandoff work --agent NAME -- CMD (handoff example prints a program for CMD)\n", export)
	if web != "" {
		data := ""
		if usual, err := a.dataDir(); err != nil || dir != usual {
			data = " --data " + dir
		}
		if link, err := signInLink(filepath.Join(dir, tokensFile), protocol.Human, web); err == nil {
			a.notef("handoff: look at it, once with this link: %s\n", link)
		}
		a.notef("handoff: HTTP at %s: eval \"$(handoff dev env%s)\" sets its URL and a token\n", web, data)
	}
}

// notStarted explains in one sentence why dev could not start, and names the next step.
func notStarted(err error, cfg devConfig) error {
	var held *filelock.HeldError
	var errno syscall.Errno
	todo := "the existing files were left as they are; see the log above, and handoff doctor"
	switch {
	case errors.Is(err, context.Canceled), is[*integrity.DamagedError](err):
		return err
	case errors.Is(err, embedded.ErrPort):
		return portTaken(cfg.Port)
	case errors.Is(err, embedded.ErrInUse):
		process := "another process"
		if errors.As(err, &held) {
			process = "process " + held.PID
		}
		return fmt.Errorf("%s has %s in use, as another handoff dev does: stop it, or choose another directory with --data", process, cfg.Dir)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		todo = "let this user write there, or choose another directory with --data"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		todo = "make room on that disk, or choose another directory with --data"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EISDIR):
		if errors.As(err, &errno) {
			err = errno
		}
		return fmt.Errorf("cannot create the directory %s (%w); choose another one with --data", cfg.Dir, err)
	default:
		return fmt.Errorf("%w; %s", err, todo)
	}
	if errors.As(err, &errno) { // the names of the failed calls add nothing
		err = errno
	}
	return fmt.Errorf("%s: %w; %s", cfg.Dir, err, todo)
}

// untilFailed returns a context that ends with ctx, or when the node has given up on its server,
// which nothing within the process can stop. Then the process replaces itself with again. If it
// cannot, it ends, so that its supervisor (systemd, Docker) starts it anew.
func (a *app) untilFailed(ctx context.Context, failed <-chan struct{}, again func() error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the context
		select {
		case <-ctx.Done():
		case <-failed:
			if a.broken != nil { // the process is ours
				a.notef("handoff: not started again: %v\n", again())
				close(a.broken)
			}
			cancel()
		}
	}()
	return ctx, cancel
}

// prepare makes the streams of a node of our own, and fills the queue and the
// timers again after a stop that was not clean. No client is served yet.
func prepare(ctx context.Context, nc *nats.Conn, cfg devConfig, guard *ledgerGuard, unclean bool, log *slog.Logger) error {
	// Where every write of the ledger is synced, the data derived from it need not be: embedded
	// recreates them after a crash.
	topology := jetstream.Topology{AsyncWork: cfg.Fsync == embedded.FsyncAlways, Fsync: string(cfg.Fsync), Partitions: cfg.Partitions}
	if err := jetstream.EnsureTopology(ctx, nc, topology); err != nil {
		return err
	}
	if err := guard.accept(ctx, nc); err != nil {
		return err
	}
	if err := setLease(ctx, nc, cfg.Lease); err != nil || !unclean {
		return err
	}
	log.Info("the last stop was not clean; recreating queues and timers from the ledger")
	b, engine, done, err := openNode(ctx, nc, broker.Config{Log: log})
	if err != nil {
		return err
	}
	defer done()
	return supervisor.Refill(ctx, b, engine, log)
}

// openNode opens the engine on a node of our own.
func openNode(ctx context.Context, nc *nats.Conn, cfg broker.Config) (*broker.Broker, *jetstream.Engine, func(), error) {
	engine, err := jetstream.Open(ctx, nc, jetstream.Config{Log: cfg.Log})
	if err != nil {
		return nil, nil, nil, err
	}
	b, err := broker.New(engine, cfg)
	if err != nil {
		return nil, nil, nil, errors.Join(err, engine.Close())
	}
	return b, engine, func() { _ = engine.Close() }, nil
}

// portTaken explains in one sentence why dev cannot listen on a port of this machine.
func portTaken(port int) error {
	const free = "--port 0"
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	if err == nil {
		l.Close()
		return fmt.Errorf("port %d was in use a moment ago; try again, or let %s pick a free one", port, free)
	}
	return cannotListen(address, err, free)
}

// cannotListen explains in one sentence why a process cannot listen on an address. free is a flag
// that lets it pick a free port.
func cannotListen(address string, err error, free string) error {
	host, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text) // 0, where it is none: then its holder is not known
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use by %s: stop that, or let %s pick a free one", port, portHolder(port, address), free)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this machine; let %s pick a free port", host, free)
	case errors.As(err, &errno):
		err = errno
	}
	return fmt.Errorf("port %d: %w; let %s pick a free one", port, err, free)
}

// portHolder names the program that listens on a port: its process where this user may see it, else
// the kind of server that answers.
func portHolder(port int, address string) string {
	if pid, command := listener(port); pid != "" {
		return fmt.Sprintf("process %s (%s)", pid, command)
	}
	if isNATS(address) {
		return "a NATS server"
	}
	return "another program"
}

// greetTimeout is how long a server has for its first line.
const greetTimeout = time.Second

// isNATS reports whether a NATS server listens there: it greets each client.
func isNATS(address string) bool {
	conn, err := net.DialTimeout("tcp", address, greetTimeout)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(greetTimeout))
	line, _ := bufio.NewReader(conn).ReadString(' ')
	return line == "INFO "
}

// listener finds the process that listens on a port, and its command line. It knows the
// processes of this user on Linux alone.
func listener(port int) (pid, command string) {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		body, _ := os.ReadFile(table) // absent elsewhere
		for _, line := range strings.Split(string(body), "\n") {
			const local, state, inode, listening = 1, 3, 9, "0A"
			cells := strings.Fields(line)
			if len(cells) > inode && cells[state] == listening && strings.HasSuffix(cells[local], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+cells[inode]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return "", ""
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && sockets[target] {
			process := filepath.Dir(filepath.Dir(file))
			words, _ := os.ReadFile(filepath.Join(process, "cmdline"))
			return filepath.Base(process), strings.TrimSpace(strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return "", ""
}

// againEnv is in the environment of a dev that has replaced itself: the port of its engine, and the
// addresses of its figures and its HTTP.
const againEnv = "HANDOFF_DEV_AGAIN"

// execAgain replaces this process with a new one of the same program, arguments and addresses, as
// after a kill: the server within hangs, and nothing else stops it. It returns only if it fails.
func execAgain(engine, metrics, shown, web string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	where, err := url.Parse(engine)
	if err != nil {
		return err
	}
	if at, err := url.Parse(shown); err == nil && shown != "" { // the port that was picked
		host, _, _ := net.SplitHostPort(metrics)
		metrics = net.JoinHostPort(host, at.Port())
	}
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, againEnv+"=") {
			env = append(env, v)
		}
	}
	env = append(env, againEnv+"="+cmp.Or(where.Port(), "0")+" "+metrics+" "+web)
	if err := syscall.Exec(program, os.Args, env); err != nil { //nolint:gosec // it is this program
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// resume takes over from the process that this one has replaced.
func (c *devConfig) resume(again string) {
	was := strings.Split(again, " ")
	if n, err := strconv.Atoi(was[0]); len(was) == 3 && err == nil {
		c.again, c.Port, c.Metrics, c.HTTP = true, n, was[1], was[2]
	}
}
