//go:build proof

package damage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// fleet is one server or three, with a supervisor and an index as processes of their own.
type fleet struct {
	*store
	base    string
	servers []*testworld.Node
	healthy func(context.Context) error

	supervisor, index *testworld.Process
	runs              string // a file with the ticket of each run of the worker's program
}

// as returns the fleet for a subtest. Its witness and its index are new.
func (f *fleet) as(t *testing.T) *fleet {
	here, s := *f, *f.store
	here.store, here.base = &s, t.TempDir()
	s.t, s.closed, s.state, here.runs = t, map[string]bool{}, filepath.Join(here.base, "state"), filepath.Join(here.base, "runs")
	s.workerScript = "cat >/dev/null; echo $HANDOFF_TICKET >>" + here.runs + "; echo done"
	return &here
}

func (f *fleet) down() {
	for _, n := range f.servers {
		n.Kill()
	}
}

func (f *fleet) up() {
	f.t.Helper()
	for _, n := range f.servers {
		n.Restart()
	}
	f.await("all servers are healthy", func() bool { return f.healthy(f.t.Context()) == nil })
}

func (f *fleet) await(what string, ok func() bool) {
	f.t.Helper()
	for began := time.Now(); !ok(); testworld.Pause(f.t.Context(), 200*time.Millisecond) {
		if time.Since(began) > patience {
			f.t.Fatalf("waited for: %s", what)
		}
	}
}

// put replaces the files of all servers by a copy, and take makes one.
func (f *fleet) put(from string) {
	for _, n := range f.servers {
		if err := os.RemoveAll(n.Dir); err != nil {
			f.t.Fatal(err)
		}
		copyDir(f.t, filepath.Join(from, n.Name), n.Dir)
	}
}

func (f *fleet) take(to string) {
	for _, n := range f.servers {
		copyDir(f.t, n.Dir, filepath.Join(to, n.Name))
	}
}

func (f *fleet) supervise(args ...string) *testworld.Process {
	f.t.Helper()
	return testworld.StartIn(f.t, f.base, "supervisor", nil, f.program, append([]string{"supervise", "-s", f.urlOfEngine}, args...)...)
}

// serve starts a supervisor and an index, and waits until the index has so many handoffs.
func (f *fleet) serve(handoffs int) (stop func()) {
	f.t.Helper()
	f.supervisor = f.supervise()
	f.supervisor.AwaitOutput(f.t.Context(), "supervising")
	f.index = testworld.StartIn(f.t, f.base, "index", nil, f.program, "index", "-s", f.urlOfEngine, "--file", filepath.Join(f.base, "index.db"))
	f.index.AwaitOutput(f.t.Context(), "ready")
	f.await("the index is complete", func() bool { return len(f.rows()) == handoffs })
	return func() { f.index.Kill(); f.supervisor.Kill() }
}

// fill makes closed and open handoffs. old and now are copies of the files: from before the last
// were closed, and of the end.
func (f *fleet) fill() (old, now string) {
	old, now = filepath.Join(f.base, "old"), filepath.Join(f.base, "now")
	if out, code := f.run("topology", "ensure", "--replicas", fmt.Sprint(len(f.servers))); code != 0 {
		f.t.Fatalf("topology ensure: %d\n%s", code, out)
	}
	stop := f.serve(0)
	if out, code := f.run("agents", "put", "coder"); code != 0 {
		f.t.Fatalf("agents put: %d\n%s", code, out)
	}
	f.submit(0, closedHandoffs/2)
	f.finish(closedHandoffs / 2)
	f.submit(closedHandoffs/2, closedHandoffs)
	f.down()
	f.take(old)
	f.up()
	f.finish(closedHandoffs)
	f.submit(closedHandoffs, closedHandoffs+openHandoffs)
	stop()
	f.down()
	f.take(now)
	return old, now
}

// row is a handoff of a list.
type row struct {
	Ticket, Outcome string
	Seq             uint64
	Closed          bool
}

func (f *fleet) rows() map[string]row {
	out, _ := f.run("list", "--limit", "1000", "-o", "jsonl")
	all := map[string]row{}
	for line := range strings.Lines(out) {
		var r row
		if json.Unmarshal([]byte(line), &r) == nil && r.Ticket != "" {
			all[r.Ticket] = r
		}
	}
	return all
}

// ask asks the engine.
func (f *fleet) ask(subject, body string, into any) bool {
	nc, err := nats.Connect(f.urlOfEngine)
	if err != nil {
		return false
	}
	defer nc.Close()
	m, err := nc.Request(subject, []byte(body), 5*time.Second)
	return err == nil && json.Unmarshal(m.Data, into) == nil
}

// lead makes a server the leader of the ledger.
func (f *fleet) lead(n *testworld.Node) {
	f.t.Helper()
	f.await(n.Name+" leads the ledger", func() bool {
		if testworld.Leader(f.t.Context(), f.urlOfEngine, "HANDOFF_LEDGER") == n.Name {
			return true
		}
		var answer struct{}
		f.ask("$JS.API.STREAM.LEADER.STEPDOWN.HANDOFF_LEDGER", fmt.Sprintf(`{"placement":{"preferred":%q}}`, n.Name), &answer)
		return false
	})
}

// missing is how many entries the leader of the ledger lacks.
func (f *fleet) missing() (n uint64) {
	f.t.Helper()
	f.await("the ledger's leader answers", func() bool {
		var info struct {
			State struct {
				Messages uint64
				Last     uint64 `json:"last_seq"`
			}
		}
		answered := f.ask("$JS.API.STREAM.INFO.HANDOFF_LEDGER", "", &info) && info.State.Last > 0
		n = info.State.Last - info.State.Messages
		return answered
	})
	return n
}

// refused checks that supervise refuses the ledger.
func (f *fleet) refused(p *testworld.Process, words ...string) {
	f.t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		f.t.Fatalf("supervise goes on with a damaged ledger:\n%s", p.Output())
	}
	if p.ExitCode() != exitDamaged {
		f.t.Fatalf("supervise ended with %d:\n%s", p.ExitCode(), p.Output())
	}
	for _, w := range append(words, "Nothing is offered", "handoff restore", "--accept-damage") {
		if !strings.Contains(p.Output(), w) {
			f.t.Errorf("supervise does not name %q:\n%s", w, p.Output())
		}
	}
}

// ranOnce checks that no handoff of some was done twice, and none that had closed before.
func (f *fleet) ranOnce(before map[string]row) {
	f.t.Helper()
	ran := map[string]int{}
	body, err := os.ReadFile(f.runs)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	for ticket := range strings.Lines(string(body)) {
		ran[strings.TrimSpace(ticket)]++
	}
	for ticket, n := range ran {
		if n > 1 || before[ticket].Closed {
			f.t.Errorf("%s was done %d times (it had closed: %v)", ticket, n, before[ticket].Closed)
		}
	}
}

// replicaKinds are the kinds of damage to the files of one server of three.
var replicaKinds = []struct {
	name string
	harm func(d *damaged, old string) // old is a copy of the files from before the last were closed
}{
	{"none", func(*damaged, string) {}},
	{"a flipped byte in a block", func(d *damaged, _ string) { d.flip(d.block(1), 100_000, 1) }},
	{"a block cut in its middle", func(d *damaged, _ string) { d.cut(d.block(1), func(n int) int { return n / 2 }) }},
	{"the last block cut in its middle", func(d *damaged, _ string) { d.cut(d.block(2), func(n int) int { return n / 2 }) }},
	{"the first block removed", func(d *damaged, _ string) { d.must(os.Remove(d.block(1))) }},
	{"the last block removed", func(d *damaged, _ string) { d.must(os.Remove(d.block(2))) }},
	{"the directory of the ledger removed", func(d *damaged, _ string) { d.must(os.RemoveAll(d.stream("HANDOFF_LEDGER"))) }},
	{"an older copy of the ledger's directory", func(d *damaged, old string) {
		d.must(os.RemoveAll(d.stream("HANDOFF_LEDGER")))
		copyDir(d.t, filepath.Join(old, "jetstream", "$G", "streams", "HANDOFF_LEDGER"), d.stream("HANDOFF_LEDGER"))
	}},
	{"an older copy of all its files", func(d *damaged, old string) {
		d.must(os.RemoveAll(d.dir))
		copyDir(d.t, old, d.dir)
	}},
}

func newDamaged(f *fleet, n *testworld.Node) *damaged {
	return &damaged{t: f.t, s: f.store, dir: n.Dir, ledger: "HANDOFF_LEDGER", streams: filepath.Join(n.Dir, "jetstream", "$G", "streams")}
}

// TestDamagedReplica kills one server of three, damages its files and starts it again. Either it
// is healed by the others, or a running supervisor and a new one refuse it as the leader, and it
// is healed as docs/operations/damage.md has it. Nothing is lost and nothing is done twice.
func TestDamagedReplica(t *testing.T) {
	if testworld.Race {
		t.Skip("processes with the race detector in them outlast their timeouts: run it without -race")
	}
	c := testworld.StartCluster(t, 3, 0)
	f := newFleet(t, c.URL(), c.Nodes, c.Recover)
	old, now := f.fill()
	for i, kind := range replicaKinds {
		t.Run(kind.name, func(t *testing.T) {
			f := f.as(t)
			f.down()
			f.put(now)
			f.up()
			defer f.serve(closedHandoffs + openHandoffs)()
			before := f.rows()
			victim := c.Nodes[i%3]
			victim.Kill()
			d := newDamaged(f, victim)
			kind.harm(d, filepath.Join(old, victim.Name))
			victim.Restart()
			f.await("the server is healthy", func() bool { return c.Recover(t.Context()) == nil })
			f.lead(victim)
			found, what := f.missing(), "healed by the others"
			if found > 0 {
				what = fmt.Sprintf("%d entries are missing: refused", found)
				f.refused(f.supervisor, "missing", "step-down")
				f.refused(f.supervise(), "missing", "step-down")
				f.lead(c.Nodes[(i+1)%3])
				victim.Kill()
				d.must(os.RemoveAll(d.stream("HANDOFF_LEDGER")))
				victim.Restart()
				f.await("the server is healthy", func() bool { return c.Recover(t.Context()) == nil })
				f.lead(victim)
				if n := f.missing(); n > 0 {
					t.Fatalf("%d entries are still missing", n)
				}
				f.supervisor = f.supervise()
				f.supervisor.AwaitOutput(t.Context(), "supervising")
			}
			f.finish(closedHandoffs + openHandoffs)
			after := f.rows()
			for ticket, was := range before {
				if is := after[ticket]; was.Closed && is != was || is.Outcome != "success" {
					t.Errorf("it was %+v, and is %+v", was, is)
				}
			}
			f.ranOnce(before)
			f.report("one of three: "+kind.name, what, 0)
			if out, code := f.run("audit", "verify"); code != 0 {
				t.Errorf("audit verify: %d\n%s", code, out)
			}
		})
	}
}

func newFleet(t *testing.T, url string, servers []*testworld.Node, healthy func(context.Context) error) *fleet {
	f := &fleet{servers: servers, healthy: healthy, store: &store{program: testworld.Handoff(t)}}
	f = f.as(t)
	f.urlOfEngine = url
	return f
}

// servedKinds are the kinds of damage to the files of a server that supervise has to find.
var servedKinds = []struct {
	name string
	harm func(d *damaged)
}{
	{"a block cut in its middle", func(d *damaged) { d.cut(d.block(1), func(n int) int { return n / 2 }) }},
	{"the first block removed", func(d *damaged) { d.must(os.Remove(d.block(1))) }},
	{"the last block cut in its middle", func(d *damaged) { d.cut(d.block(2), func(n int) int { return n / 2 }) }},
}

// TestDamagedServer damages the files of a server without replicas. supervise refuses it, and with
// --accept-damage nothing is done again that the index knows as closed.
func TestDamagedServer(t *testing.T) {
	server := testworld.StartServer(t, t.TempDir(), "")
	f := newFleet(t, server.URL, []*testworld.Node{server}, func(ctx context.Context) error { return testworld.Healthy(ctx, server.Monitor) })
	_, now := f.fill()
	for _, kind := range servedKinds {
		t.Run(kind.name, func(t *testing.T) {
			f := f.as(t)
			f.down()
			f.put(now)
			f.up()
			stop := f.serve(closedHandoffs + openHandoffs)
			defer stop()
			before := f.rows()
			f.supervisor.Signal(syscall.SIGTERM)
			f.supervisor.Wait()
			server.Kill()
			kind.harm(newDamaged(f, server))
			f.up()
			f.refused(f.supervise(), "This concerns", "of them closed")
			accepted := f.supervise("--accept-damage")
			accepted.AwaitOutput(t.Context(), "supervising")
			f.await("the index has begun anew", func() bool { return len(f.rows()) >= closedHandoffs })
			open := f.tickets("--open")
			for ticket, was := range before {
				if was.Closed && open[ticket] {
					t.Errorf("%s had closed and is open again", ticket)
				}
			}
			f.finish(len(f.rows()))
			f.ranOnce(before)
			accepted.Signal(syscall.SIGTERM)
			accepted.Wait()
			again := f.supervise()
			again.AwaitOutput(t.Context(), "supervising")
			f.report("a server: "+kind.name, "refused", 0)
		})
	}
}

// TestUnreadableEntry: a server that was stopped cleanly still counts an entry that it cannot read.
// supervise cannot see that in its figures, and logs it: nothing is done again, and doctor fails.
func TestUnreadableEntry(t *testing.T) {
	server := testworld.StartServer(t, t.TempDir(), "")
	f := newFleet(t, server.URL, []*testworld.Node{server}, func(ctx context.Context) error { return testworld.Healthy(ctx, server.Monitor) })
	_, now := f.fill()
	f = f.as(t)
	f.put(now)
	f.up()
	defer f.serve(closedHandoffs + openHandoffs)()
	before := f.rows()
	f.finish(closedHandoffs + openHandoffs)
	server.Signal(syscall.SIGTERM)
	server.Wait()
	d := newDamaged(f, server)
	d.flip(d.block(2), -500, 1)
	f.up()
	f.supervisor.AwaitOutput(t.Context(), "read the heads of the ledger")
	if out, code := f.run("doctor"); code != 1 || !strings.Contains(out, "stopped after") {
		t.Errorf("doctor: %d\n%s", code, out)
	}
	f.ranOnce(before)
}
