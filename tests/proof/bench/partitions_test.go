//go:build proof

package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/internal/bench/bare"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

var (
	partitionCounts  = flag.String("partitions", "1,2,3,6", "TestPartitions: how many ledger and work streams, in turn")
	partitionNodes   = flag.Int("nodes", 3, "TestPartitions: servers, each a process, and replicas")
	partitionShare   = flag.Float64("share", 0.4, "TestPartitions: the part of one processor that each server may use; 0 is no limit")
	partitionProcs   = flag.Int("procs", 1, "TestPartitions: processors that each server sees")
	partitionFsync   = flag.String("fsync", "interval", "TestPartitions: interval or always")
	partitionRounds  = flag.Int("rounds", 1, "TestPartitions: how often all counts are measured")
	partitionSeconds = flag.Int("seconds", 8, "TestPartitions: how long each count is measured")
	partitionSources = flag.Int("sources", 96, "TestPartitions: sources at a time")
)

// What a handoff of 1 KB stores, by a report of handoff bench.
const (
	bareAppends    = 3
	bareFirstBytes = 2_580
	bareLaterBytes = 1_520
	bareOfferBytes = 1_990
)

// TestPartitions measures the bare engine on servers that each have the same share of a
// processor, with one ledger and one work stream and with several, whose leaders are spread
// evenly. The load is what the servers can take: it comes from this process, which has the rest
// of the processors.
func TestPartitions(t *testing.T) {
	if os.Getenv("HANDOFF_BENCH") != "1" {
		t.Skip("set HANDOFF_BENCH=1")
	}
	members := startMembers(t, *partitionNodes)
	for round := range *partitionRounds {
		for word := range strings.SplitSeq(*partitionCounts, ",") {
			count, err := strconv.Atoi(word)
			if err != nil || count < 1 {
				t.Fatalf("-partitions: %q is no number of at least 1", word)
			}
			measurePartitions(t, members, round+1, count)
		}
	}
}

// member is a server of a cluster, in a process of its own.
type member struct {
	*process
	name, url string
	throttled func() string
}

// Conn implements bare.Node.
func (m *member) Conn(options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(m.url, append(handoffjs.ConnectOptions("bench"), options...)...)
}

// startMembers starts a cluster and limits its servers.
func startMembers(t *testing.T, n int) (all []*member) {
	t.Helper()
	ports, err := embedded.FreePorts(2 * n)
	if err != nil {
		t.Fatal(err)
	}
	var routes []string
	for _, port := range ports[:n] {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		of := append([]string{filepath.Join(t.TempDir(), name), name, *partitionFsync, strconv.Itoa(*partitionProcs),
			strconv.Itoa(ports[n+i]), strconv.Itoa(ports[i])}, routes...)
		all = append(all, &member{process: start(t, "member", of...), name: name, throttled: func() string { return "" }})
	}
	for _, m := range all {
		m.url = m.line()
		if *partitionShare > 0 {
			m.throttled = limit(t, m.process, *partitionShare)
		}
	}
	return all
}

// keepMember is the process of a server of a cluster.
func keepMember(ctx context.Context, dir, name, fsync, procs, port, clusterPort string, routes []string) error {
	numbers := make([]int, 3)
	for i, text := range []string{procs, port, clusterPort} {
		var err error
		if numbers[i], err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	runtime.GOMAXPROCS(numbers[0])
	cfg := embedded.Config{Dir: dir, Name: name, Fsync: embedded.Fsync(fsync), Port: numbers[1]}
	if len(routes) > 1 {
		cfg.Cluster = &embedded.ClusterConfig{Port: numbers[2], Routes: routes}
	}
	node, err := embedded.Start(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Println(node.ClientURL())
	<-ctx.Done()
	return node.Stop()
}

// measurePartitions runs the bare engine once over so many pairs of streams, made for it.
func measurePartitions(t *testing.T, members []*member, round, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	nc, err := members[0].Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	streams := makePartitions(ctx, t, js, members, count)
	cfg := bare.Config{
		Spread: true, Streams: streams, Submitters: *partitionSources, Slots: *partitionSources, Agents: 6, Open: 4 * *partitionSources,
		Warmup: 2 * time.Second, Duration: time.Duration(*partitionSeconds) * time.Second, Drain: 30 * time.Second,
		Appends: bareAppends, FirstBytes: bareFirstBytes, LaterBytes: bareLaterBytes, OfferBytes: bareOfferBytes,
	}
	for _, m := range members {
		cfg.Nodes = append(cfg.Nodes, m)
	}
	var usedBefore, usedAfter []time.Duration
	cfg.Begin = func() { usedBefore = used(members) }
	cfg.End = func() { usedAfter = used(members) }
	f, err := bare.Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var busy []string
	total := time.Duration(0)
	for i := range usedBefore {
		busy = append(busy, fmt.Sprintf("%.2f", (usedAfter[i]-usedBefore[i]).Seconds()/f.Took.Seconds()))
		if i < len(members) {
			total += usedAfter[i] - usedBefore[i]
		}
	}
	all := (usedAfter[len(members)+1] - usedBefore[len(members)+1]).Seconds() / f.Took.Seconds()
	t.Logf("round %d, fsync %s, %d of each stream: %.0f handoffs/s, p50 %v, p99 %v; servers %v a handoff; processors busy: servers %s, load %s, with other processes %.2f",
		round, *partitionFsync, count, float64(f.Handoffs)/f.Took.Seconds(),
		time.Duration(f.Complete.ValueAtQuantile(50)).Round(10*time.Microsecond), time.Duration(f.Complete.ValueAtQuantile(99)).Round(10*time.Microsecond),
		(total / time.Duration(max(f.Handoffs, 1))).Round(time.Microsecond), strings.Join(busy[:len(members)], " "), busy[len(members)], all)
	for _, m := range members {
		if said := m.throttled(); said != "" {
			t.Logf("%s: %s", m.name, said)
		}
	}
	for _, s := range streams {
		for _, name := range []string{s.Ledger, s.Work} {
			if err := js.DeleteStream(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// used is the processor time that each server has had, then this process, then all processes
// of the machine.
func used(members []*member) (all []time.Duration) {
	for _, m := range members {
		all = append(all, m.cpu())
	}
	return append(all, cpuOf(os.Getpid()), cpuOfAll())
}

// makePartitions makes so many ledgers and work streams like those of Handoff, and has the
// servers lead them in turn.
func makePartitions(ctx context.Context, t *testing.T, js jetstream.JetStream, members []*member, count int) (all []bare.Streams) {
	t.Helper()
	for i := range count {
		s := bare.Streams{Ledger: fmt.Sprintf("LEDGER_%d", i), Work: fmt.Sprintf("WORK_%d", i)}
		for _, cfg := range []jetstream.StreamConfig{
			{Name: s.Ledger, Subjects: []string{fmt.Sprintf("p%d.ledger.>", i)}, AllowAtomicPublish: true, DenyDelete: true, DenyPurge: true,
				AllowDirect: true, MaxMsgsPerSubject: 1 << 40},
			{Name: s.Work, Subjects: []string{fmt.Sprintf("p%d.work.>", i)}, Retention: jetstream.WorkQueuePolicy, AllowDirect: true},
		} {
			cfg.Replicas, cfg.Duplicates = len(members), time.Second
			create(ctx, t, js, cfg)
		}
		if len(members) > 1 {
			lead(ctx, t, js, s.Ledger, members[i%len(members)].name)
			lead(ctx, t, js, s.Work, members[(i+1)%len(members)].name)
		}
		all = append(all, s)
	}
	return all
}

// create makes a stream, as soon as the servers have elected who makes it.
func create(ctx context.Context, t *testing.T, js jetstream.JetStream, cfg jetstream.StreamConfig) {
	t.Helper()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.CreateOrUpdateStream(try, cfg)
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("create %s: %v", cfg.Name, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// lead has a server lead a stream.
func lead(ctx context.Context, t *testing.T, js jetstream.JetStream, name, server string) {
	t.Helper()
	request, err := json.Marshal(map[string]any{"placement": map[string]any{"preferred": server}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		stream, err := js.Stream(ctx, name)
		if err == nil && stream.CachedInfo().Cluster != nil && stream.CachedInfo().Cluster.Leader == server {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s does not lead %s: %v", server, name, err)
		}
		_, _ = js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, request, time.Second)
		time.Sleep(200 * time.Millisecond)
	}
}
