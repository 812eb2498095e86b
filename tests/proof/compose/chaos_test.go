//go:build proof

package compose

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

var (
	long   = flag.Bool("long", false, "chaos on containers, too: each fault there is, ten minutes")
	rounds = flag.Int("rounds", 1, "with -long: how often there is each fault")
	seed   = flag.Uint64("seed", 1, "with -long: which container each befalls, and in what order")
	only   = flag.String("fault", "", "with -long: only faults whose name this regular expression matches")
)

const (
	// lease is that of the workers in chaos.yml.
	lease = 4 * time.Second
	// skew is how far the clocks of servers jump: what they stamp is believed, and their
	// next attempts come as much later. No process relies on another's clock: they jump
	// by an hour.
	skew = 2 * time.Minute
	// workTimeout is less than that, so that it does here, too.
	workTimeout = time.Minute
)

var relay = []string{"first", "second", "third", "fourth"}

// chaos is a stack that is being harmed.
type chaos struct {
	*stack
	chance *rand.Rand
	clocks string // a directory: clock_test.go
}

// fault is one way to do harm. It returns when that is over.
type fault struct {
	name string
	do   func(*chaos)
}

var faults = []fault{
	{"a worker killed", func(c *chaos) { c.killed(2*time.Second, c.one(relay...)) }},
	{"five workers killed at once", func(c *chaos) { c.killed(0, c.some(5, relay...)...) }},
	{"a supervisor killed", func(c *chaos) { c.killed(6*time.Second, c.one("supervise")) }},
	{"both supervisors killed", func(c *chaos) { c.killed(0, c.containers("supervise")...) }},
	{"an index killed", func(c *chaos) { c.killed(2*time.Second, c.one("index-1", "index-2")) }},
	{"a node killed that does not lead the ledger", func(c *chaos) { c.killed(4*time.Second, c.follower()) }},
	{"the ledger's leader killed", func(c *chaos) { c.killed(4*time.Second, c.leader()) }},
	{"all three nodes killed at once and started again", func(c *chaos) { c.killed(0, c.containers("nats-1", "nats-2", "nats-3")...) }},
	{"a worker frozen for two leases, then continued", func(c *chaos) { c.frozen(2*lease, c.one(relay...)) }},
	{"all workers of an agent frozen for two leases, then continued", func(c *chaos) { c.frozen(2*lease, c.containers("second")...) }},
	{"a supervisor frozen for 10 s", func(c *chaos) { c.frozen(10*time.Second, c.one("supervise")) }},
	{"the ledger's leader frozen for 8 s", func(c *chaos) { c.frozen(8*time.Second, c.leader()) }},
	{"a worker cut from the cluster for two leases", func(c *chaos) { c.cut("engine", 2*lease, c.one(relay...)) }},
	{"half the workers cut from the cluster for two leases", func(c *chaos) { c.cut("engine", 2*lease, c.some(6, relay...)...) }},
	{"a supervisor cut from the cluster for 10 s", func(c *chaos) { c.cut("engine", 10*time.Second, c.one("supervise")) }},
	{"a node that does not lead cut from both others", func(c *chaos) { c.cut("routes", 10*time.Second, c.follower()) }},
	{"the ledger's leader cut from both others", func(c *chaos) { c.cut("routes", 10*time.Second, c.leader()) }},
	{"a worker's clock an hour ahead for 8 s", func(c *chaos) { c.jump(time.Hour, 2*lease, c.one(relay...)) }},
	{"a worker's clock an hour behind for 8 s", func(c *chaos) { c.jump(-time.Hour, 2*lease, c.one(relay...)) }},
	{"a supervisor's clock an hour ahead for 10 s", func(c *chaos) { c.jump(time.Hour, 10*time.Second, c.one("supervise")) }},
	{"a supervisor's clock an hour behind for 10 s", func(c *chaos) { c.jump(-time.Hour, 10*time.Second, c.one("supervise")) }},
	{"the clock of the ledger's leader two minutes ahead for 10 s", func(c *chaos) { c.jump(skew, 10*time.Second, c.leader()) }},
	{"the clock of the ledger's leader two minutes behind for 10 s", func(c *chaos) { c.jump(-skew, 10*time.Second, c.leader()) }},
	{"the clock of another node two minutes ahead for 10 s", func(c *chaos) { c.jump(skew, 10*time.Second, c.follower()) }},
	{"all three nodes cut from each other", func(c *chaos) { c.cut("routes", 10*time.Second, c.containers("nats-1", "nats-2", "nats-3")...) }},
}

// TestChaos does to containers what tests/proof/chaos does to processes.
func TestChaos(t *testing.T) {
	if !*long {
		t.Skip("ten minutes: go test -tags proof ./tests/proof/compose -run TestChaos -v -timeout 60m -long")
	}
	which, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*rounds+1)*20*time.Minute)
	defer cancel()
	c := &chaos{chance: rand.New(rand.NewPCG(*seed, 9)), clocks: t.TempDir()}
	files, overlay := []string{"chaos.yml"}, testworld.ClockOverlay(t)
	if overlay != "" {
		files = append(files, "clocks.yml")
	}
	c.stack = newStack(t, ctx, overlay, files...)
	c.env = append(c.env, "HANDOFF_TEST_CLOCKS="+c.clocks)
	c.up()
	b, acks := c.broker("judge"), &testworld.Acks{}
	for _, agent := range relay {
		profile, err := b.Profile(ctx, agent)
		if err != nil {
			t.Fatal(err)
		}
		profile.MaxExecutionMS = workTimeout.Milliseconds()
		if err := b.PutProfile(ctx, profile); err != nil {
			t.Fatal(err)
		}
	}
	stop := c.sources(2, relay[0], acks)
	c.pause(between)
	var done []testworld.Fault
	for range *rounds {
		for _, i := range c.chance.Perm(len(faults)) {
			name := faults[i].name
			switch clock := strings.Contains(name, "clock"); {
			case !which.MatchString(name):
				continue
			case clock && overlay == "", clock && !c.ourServers && !strings.Contains(name, "'s clock"):
				t.Logf("skipped: %s: its program was not built for it", name)
				continue
			}
			began := time.Now()
			faults[i].do(c)
			done = append(done, testworld.Fault{Name: name, From: began, To: time.Now(), Untimed: strings.HasPrefix(name, "the clock of")})
			t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), name)
			c.recovered()
		}
	}
	stop()
	heads := (&testworld.Judge{Broker: b, Acks: acks, Faults: done, Between: between, Indexed: indexed(b)}).Judge(ctx, t)
	c.relayed(heads)
}

// relayed: each handoff of the first agent was handed off three times, and no more.
func (c *chaos) relayed(heads map[string]protocol.State) {
	at := map[string]int{}
	for _, head := range heads {
		at[head.Agent]++
	}
	for _, agent := range relay {
		if at[agent] != at[relay[0]] {
			c.Errorf("%v handoffs ended at each agent, and should be as many at all", at)
			return
		}
	}
}

func (c *chaos) one(services ...string) string { return c.some(1, services...)[0] }

func (c *chaos) some(n int, services ...string) []string {
	all := c.containers(services...)
	c.chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:n]
}

// follower is a server that does not lead the ledger.
func (c *chaos) follower() string {
	leader := c.leader()
	for {
		if node := c.one("nats-1", "nats-2", "nats-3"); node != leader {
			return node
		}
	}
}

// killed kills containers at once, and starts them again after a while.
func (c *chaos) killed(away time.Duration, containers ...string) {
	c.docker(append([]string{"kill"}, containers...)...)
	c.pause(away)
	c.docker(append([]string{"start"}, containers...)...)
}

// frozen stops containers for a while: nothing renews the leases of their handoffs, and
// they do not know.
func (c *chaos) frozen(d time.Duration, containers ...string) {
	c.docker(append([]string{"pause"}, containers...)...)
	c.pause(d)
	c.docker(append([]string{"unpause"}, containers...)...)
}

// cut takes containers out of a network for a while: no connection is closed, nothing
// arrives any more.
func (c *chaos) cut(network string, d time.Duration, containers ...string) {
	network = c.name + "_" + network
	for _, container := range containers {
		c.docker("network", "disconnect", network, container)
	}
	c.pause(d)
	for _, container := range containers {
		service := c.docker("container", "inspect", "--format", `{{index .Config.Labels "com.docker.compose.service"}}`, container)
		args := []string{"network", "connect", "--alias", service}
		if strings.HasSuffix(network, "_routes") {
			args = append(args, "--alias", strings.Replace(service, "nats", "route", 1))
		}
		c.docker(append(args, network, container)...)
	}
}

// recovered waits until the cluster is whole again, and a moment more.
func (c *chaos) recovered() {
	c.Helper()
	healing, cancel := context.WithTimeout(c.ctx, 2*time.Minute)
	defer cancel()
	began, why := time.Now(), ""
	for i, monitor := range c.monitors {
		at, soon := context.WithTimeout(healing, time.Second)
		if err := testworld.Healthy(at, monitor); err != nil {
			why = fmt.Sprintf("server %d: %v", i+1, err)
		}
		soon()
	}
	for i, monitor := range c.monitors {
		if err := testworld.Healthy(healing, monitor); err != nil {
			c.Fatalf("the cluster does not recover: server %d: %v", i+1, err)
		}
	}
	if why != "" {
		c.Logf("the cluster was whole again after %v; %s", time.Since(began).Round(100*time.Millisecond), why)
	}
	c.pause(between)
}

// jump has a container's clock be wrong for a while, and jump back.
func (c *chaos) jump(by, d time.Duration, container string) {
	// A container's host name is the beginning of its id.
	name := c.docker("container", "inspect", "--format", "{{.Config.Hostname}}", container)
	if err := testworld.SetClock(c.clocks, name, int(by/time.Second)); err != nil {
		c.Fatal(err)
	}
	c.pause(d)
	if err := testworld.SetClock(c.clocks, name, 0); err != nil {
		c.Error(err)
	}
}
