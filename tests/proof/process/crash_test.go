//go:build proof

package process

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// crashLease is the lease of the workers that these tests kill: short, so that
// they are quick; the default with HANDOFF_LONG.
func crashLease() time.Duration {
	if long() {
		return time.Duration(protocol.LeaseDefaultMS) * time.Millisecond
	}
	return 2 * time.Second
}

// hangingScript is a worker's script whose first attempt does not end until a file
// is there, and says where it has got to; the others answer at once.
func hangingScript(t *testing.T) (path, release string) {
	t.Helper()
	dir := t.TempDir()
	release = filepath.Join(dir, "release")
	path = script(t, `if [ "$HANDOFF_ATTEMPT" = 1 ] && ! mkdir `+dir+`/"$HANDOFF_TICKET" 2>/dev/null; then exit 65; fi
if [ "$HANDOFF_ATTEMPT" = 1 ]; then
	echo $$ > `+dir+`/pid
	while [ ! -e `+release+` ] && [ -d `+dir+` ]; do sleep 0.05; done
	echo late
	exit
fi
echo fresh`)
	t.Cleanup(func() { // should the script outlive its worker after all
		_ = os.WriteFile(release, nil, 0o600)
	})
	return path, release
}

// submitAndAwaitStart submits a handoff and waits until its first attempt is under way.
func submitAndAwaitStart(t *testing.T, ctx context.Context, b *broker.Broker, agent string) string {
	t.Helper()
	ticket := submit(t, b, agent, nil)
	if _, err := brokertest.Wait(ctx, b, ticket, func(s protocol.State) bool { return s.Phase == protocol.Working }); err != nil {
		t.Fatal(err)
	}
	return ticket
}

func wantResult(t *testing.T, ctx context.Context, b *broker.Broker, ticket, want string) {
	t.Helper()
	result, _, err := b.Result(ctx, ticket)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(strings.Trim(string(result.Body), `"`)); got != want {
		t.Errorf("the result is %s, want %s", result.Body, want)
	}
}

// A worker killed in the middle of its work loses its claim, and another
// process completes the handoff as attempt 2.
func TestKilledWorker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	path, _ := hangingScript(t)
	flags := []string{"--agent", "coder", "--lease", crashLease().String()}
	b := dial(t, dev.url)
	first := dev.work(ctx, "first", path, flags...)
	ticket := submitAndAwaitStart(t, ctx, b, "coder")
	dev.work(ctx, "second", path, flags...)
	first.Kill()
	killed := time.Now()
	state := closed(t, ctx, b, ticket)
	t.Logf("completed %v after the kill; lease + 5 s is %v", time.Since(killed).Round(time.Millisecond), crashLease()+5*time.Second)
	if state.Attempt != 2 || state.LeasesLost != 1 {
		t.Errorf("completed by attempt %d after %d lost leases, want 2 after 1", state.Attempt, state.LeasesLost)
	}
	wantResult(t, ctx, b, ticket, "fresh")
}

// The same when no other process is there to take over: the supervisor says
// that the lease is lost, and a later worker completes the handoff.
func TestKilledWorkerWithoutSuccessor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	path, _ := hangingScript(t)
	flags := []string{"--agent", "coder", "--lease", crashLease().String()}
	b := dial(t, dev.url)
	first := dev.work(ctx, "first", path, flags...)
	ticket := submitAndAwaitStart(t, ctx, b, "coder")
	first.Kill()
	killed := time.Now()
	state, err := brokertest.Wait(ctx, b, ticket, func(s protocol.State) bool { return s.LeasesLost == 1 && !s.Held() })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the lease was lost %v after the kill", time.Since(killed).Round(time.Millisecond))
	if state.Phase != protocol.Pending || state.Agent != "coder" {
		t.Errorf("%s with %s, want pending with coder", state.Phase, state.Agent)
	}
	if long() { // the minute is what is tested
		select {
		case <-time.After(time.Until(killed.Add(time.Minute))):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	began := time.Now()
	dev.work(ctx, "second", path, flags...)
	if state = closed(t, ctx, b, ticket); state.Attempt != 2 {
		t.Errorf("completed by attempt %d, want 2", state.Attempt)
	}
	t.Logf("completed %v after another process came", time.Since(began).Round(time.Millisecond))
	wantResult(t, ctx, b, ticket, "fresh")
}

// A worker that is frozen for longer than its lease and then goes on is told
// so: its late result is refused, and the other's counts.
func TestZombieWorker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	path, release := hangingScript(t)
	flags := []string{"--agent", "coder", "--lease", crashLease().String()}
	b := dial(t, dev.url)
	zombie := dev.work(ctx, "zombie", path, flags...)
	ticket := submitAndAwaitStart(t, ctx, b, "coder")
	pid := pidIn(t, ctx, filepath.Join(filepath.Dir(release), "pid"))
	zombie.Signal(syscall.SIGSTOP)
	second := dev.work(ctx, "second", path, flags...)
	if state := closed(t, ctx, b, ticket); state.Attempt != 2 {
		t.Errorf("completed by attempt %d, want 2", state.Attempt)
	}
	before := eventsOf(t, ctx, b, ticket)
	second.Signal(syscall.SIGTERM)
	<-second.Ended()
	// The program ends while its worker is frozen: the result is there when it wakes.
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	poll(t, ctx, "the end of the program", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ") // its worker has yet to take note
	})
	zombie.Signal(syscall.SIGCONT)
	zombie.AwaitOutput(ctx, "handoff lost")
	wantResult(t, ctx, b, ticket, "fresh")
	after := eventsOf(t, ctx, b, ticket)
	delete(after, protocol.EventResultParked) // its late result may be kept, and changes nothing
	if len(after) != len(before) || after[protocol.EventCompleted] != 1 {
		t.Errorf("the zombie changed the handoff: %v, was %v", after, before)
	}
	// And it is a good worker again.
	next := submit(t, b, "coder", nil)
	closed(t, ctx, b, next)
	wantResult(t, ctx, b, next, "late") // what a first attempt says once it is released
}

// pidIn waits until a script has written its process id.
func pidIn(t *testing.T, ctx context.Context, file string) (pid string) {
	t.Helper()
	poll(t, ctx, file, func() bool {
		text, _ := os.ReadFile(file) // it may not be there yet
		pid = strings.TrimSpace(string(text))
		return pid != ""
	})
	return pid
}

// poll polls until there returns true.
func poll(t *testing.T, ctx context.Context, what string, there func() bool) {
	t.Helper()
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for !there() {
		select {
		case <-every.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, ctx.Err())
		}
	}
}
