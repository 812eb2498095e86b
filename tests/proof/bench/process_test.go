//go:build proof

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// roleEnv makes this test binary one of the processes that a test measures: a
// role and what it needs, with spaces between.
const roleEnv = "HANDOFF_BENCH_ROLE"

// roles are what this binary can be.
var roles = map[string]func(ctx context.Context, of []string) error{
	"index":      func(ctx context.Context, of []string) error { return keepIndex(ctx, of[0], of[1]) },
	"engine":     func(ctx context.Context, of []string) error { return keepEngine(ctx, of[0]) },
	"supervisor": func(ctx context.Context, of []string) error { return supervise(ctx, of[0]) },
	"gateway":    func(ctx context.Context, of []string) error { return keepGateway(ctx, of[0], of[1]) },
	"flow":       func(ctx context.Context, of []string) error { return flow(ctx, of[0], of[1]) },
	"member": func(ctx context.Context, of []string) error {
		return keepMember(ctx, of[0], of[1], of[2], of[3], of[4], of[5], of[6:])
	},
}

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(roleEnv)); len(words) > 0 {
		if err := runRole(words[0], words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, words[0]+":", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runRole is a process in a role, until it is told to end. A profile is written
// where HANDOFF_BENCH_PROFILE says, with the role and the process's id after it.
func runRole(role string, of []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if profile := os.Getenv("HANDOFF_BENCH_PROFILE"); profile != "" {
		f, err := os.Create(fmt.Sprintf("%s.%s.%d", profile, role, os.Getpid()))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return roles[role](ctx, of)
}

// process is one in a role.
type process struct {
	t    *testing.T
	role string
	cmd  *exec.Cmd
	says *bufio.Scanner // its stdout
	end  sync.Once
}

// start starts a process in a role; it is stopped with the test.
func start(t *testing.T, role string, of ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role+" "+strings.Join(of, " "))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, role: role, cmd: cmd, says: bufio.NewScanner(out)}
	t.Cleanup(p.stop)
	return p
}

// stop ends the process and waits for its end.
func (p *process) stop() {
	p.end.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.cmd.Wait(); err != nil {
			p.t.Errorf("the %s ended with %v", p.role, err)
		}
	})
}

// line waits for the next line that the process says.
func (p *process) line() string {
	p.t.Helper()
	if !p.says.Scan() {
		p.t.Fatalf("the %s ended before it said anything: %v", p.role, p.says.Err())
	}
	return p.says.Text()
}

// memory is what a process has resident, now and at its peak, in bytes; 0 where
// that is not told.
func (p *process) memory() (now, peak int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	figures := map[string]int64{}
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		figures[name], _ = strconv.ParseInt(kb, 10, 64)
	}
	return figures["VmRSS"] << 10, figures["VmHWM"] << 10
}

// forgetPeak lets the peak of a process begin anew with what it has now.
func (p *process) forgetPeak() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0)
}

// cpu is the processor time that a process has had; 0 where that is not told.
func (p *process) cpu() time.Duration { return cpuOf(p.cmd.Process.Pid) }

func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[max(0, strings.LastIndexByte(string(stat), ')')):]))
	if err != nil || len(fields) < 14 {
		return 0
	}
	user, _ := strconv.Atoi(fields[12])
	system, _ := strconv.Atoi(fields[13])
	return time.Duration(user+system) * time.Second / 100 // in ticks of a hundredth, on every Linux
}

// cpuOfAll is the processor time that all processes have had; 0 where that is not told.
func cpuOfAll() time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line)
	if err != nil || len(fields) < 9 {
		return 0
	}
	ticks := 0
	for i, field := range fields[1:9] {
		if n, err := strconv.Atoi(field); err == nil && i != 3 && i != 4 { // idle, and idle while a disk works
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / 100
}

// reportMemory says what a process has resident.
func (p *process) reportMemory(when string) (peak int64) {
	p.t.Helper()
	now, peak := p.memory()
	p.t.Logf("memory of the %s %s: %d MB, at its peak %d MB; %v of processor time", p.role, when, now>>20, peak>>20, p.cpu().Round(10*time.Millisecond))
	return peak
}

// startEngine starts a node in a process of its own.
func startEngine(t *testing.T, dir string) (url string, p *process) {
	t.Helper()
	p = start(t, "engine", dir)
	return p.line(), p
}

// keepEngine is the process of a node.
func keepEngine(ctx context.Context, dir string) error {
	node, err := openEngine(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Println(node.ClientURL())
	<-ctx.Done()
	return node.Stop()
}

// openEngine starts a node in this process.
func openEngine(ctx context.Context, dir string) (*embedded.Node, error) {
	return embedded.Start(ctx, embedded.Config{Dir: dir, Fsync: embedded.FsyncInterval,
		Prepare: jetstream.Topology{Partitions: partitions()}.Prepare})
}

// dial opens a broker of its own on an engine.
func dial(ctx context.Context, url, name string) (*jetstream.Engine, *broker.Broker, error) {
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: name})
	if err != nil {
		return nil, nil, err
	}
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		return nil, nil, errors.Join(err, engine.Close())
	}
	return engine, b, nil
}

// supervise is the process of a supervisor.
func supervise(ctx context.Context, url string) error {
	engine, b, err := dial(ctx, url, "supervisor")
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	s, err := supervisor.New(b, engine, supervisor.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// flow is a process that hands off so many packages a second, works on them,
// and looks after them.
func flow(ctx context.Context, url, rate string) error {
	perSecond, err := strconv.Atoi(rate)
	if err != nil {
		return err
	}
	engine, b, err := dial(ctx, url, "flow")
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	s, err := supervisor.New(b, engine, supervisor.Config{})
	if err != nil {
		return err
	}
	if err := b.PutProfile(ctx, protocol.Profile{ID: "flow"}); err != nil {
		return err
	}
	w, err := worker.New(api.Direct(b, "flow"), worker.Config{Agent: "flow", Concurrency: 64}, worker.HandlerFunc(
		func(context.Context, worker.Handoff) (protocol.Result, error) {
			return protocol.Result{Status: protocol.Success, Body: []byte(`"done"`)}, nil
		}))
	if err != nil {
		return err
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	for _, run := range []func(context.Context) error{s.Run, w.Run} {
		parts.Go(func() { _ = run(ctx) })
	}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for said := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		in, err := b.Prepare(ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: "flow"}, Reason: "to measure",
			Task: protocol.Task{Type: "bench", Description: strings.Repeat("x", 700)}})
		if err == nil {
			_, err = b.Submit(ctx, in)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		if !said {
			fmt.Println("flows")
			said = true
		}
	}
}
