//go:build proof

// Package soak runs a fleet at half of its throughput for a given time, and checks that nothing
// grows: three servers, two supervisors, two indexes, two workers and a source, each a process.
//
//	go test -tags proof ./tests/proof/soak                                # the short form: half a minute
//	go test -tags proof ./tests/proof/soak -minutes 30 -timeout 1h -v     # the long one
package soak

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
)

var (
	minutes = flag.Float64("minutes", 0.5, "how long it works")
	perSec  = flag.Int("rate", 0, "handoffs a second; 0 is half of what it was seen to do in 15 s")
)

const (
	// lagMax is how many entries a server may be behind another when they are asked
	// one after the other.
	lagMax      = 5_000
	calibration = 15 * time.Second
	samples     = 60
	// closeTimeout is how long what is open at the end may take.
	closeTimeout = 2 * time.Minute
)

// resources is what is looked at in a process.
type resources struct{ rssKB, goroutines, files float64 }

// observedProcess is one process, and what was seen of it, sample by sample.
type observedProcess struct {
	*testworld.Process
	metrics string // where it shows its figures; empty: it says how many goroutines it has
	server  bool
	seen    []resources
}

type soak struct {
	*testing.T
	ctx     context.Context
	cluster *testworld.Cluster
	b       *broker.Broker
	all     []*observedProcess
	engine  []map[string]float64 // consumers, and messages of streams
	stored  []float64            // in the ledger
	kept    bool                 // profiles of a server that grows
}

// TestSoak checks that at half of the throughput only the stored data grow.
func TestSoak(t *testing.T) {
	if testworld.Race {
		t.Skip("soak: it would measure the race detector")
	}
	span := time.Duration(*minutes * float64(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), span+10*time.Minute)
	defer cancel()
	s := &soak{T: t, ctx: ctx, cluster: testworld.StartCluster(t, 3, 0)}
	url := s.cluster.URL()
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: "test"})
	s.must(err)
	t.Cleanup(func() { _ = engine.Close() })
	s.b, err = broker.New(engine, broker.Config{})
	s.must(err)
	for _, n := range s.cluster.Nodes {
		s.all = append(s.all, &observedProcess{Process: n.Process, server: true})
	}
	handoff, dir := testworld.Handoff(t), t.TempDir()
	for i := range 2 {
		s.startShowingFigures(fmt.Sprint("supervisor", i), handoff, "supervise", "-s", url)
		s.startShowingFigures(fmt.Sprint("index", i), handoff, "index", "-s", url, "--file", filepath.Join(dir, fmt.Sprint("index", i, ".db")))
		s.all = append(s.all, &observedProcess{Process: testworld.Start(t, fmt.Sprint("worker", i), []string{roleEnv + "=worker " + url}, os.Args[0])})
	}
	s.eventually("the workers are there", time.Minute, func() bool {
		d, err := s.b.Directory(ctx)
		return err == nil && len(d.Holders) == 2
	})
	rate := *perSec
	if rate == 0 {
		rate = max(1, int(float64(s.source(0, calibration))/calibration.Seconds()/2))
	}
	t.Logf("%d handoffs a second, for %v", rate, span)
	acked := s.source(rate, span)
	open := s.awaitClosed()
	if open > 0 {
		t.Errorf("%d handoffs are open", open)
	}
	s.checkGrowth(acked)
}

func (s *soak) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *soak) eventually(what string, within time.Duration, is func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	for !is() {
		if testworld.Pause(ctx, 100*time.Millisecond); ctx.Err() != nil {
			s.Fatalf("not so within %v: %s", within, what)
		}
	}
}

var showingFigures = regexp.MustCompile(`showing figures" url=(\S+)`)

// startShowingFigures starts a process that shows figures.
func (s *soak) startShowingFigures(name, path string, args ...string) {
	p := testworld.Start(s, name, nil, path, append(args, "--metrics", "127.0.0.1:0")...)
	var url string
	s.eventually(name+" shows figures", time.Minute, func() bool {
		if found := showingFigures.FindStringSubmatch(p.Output()); found != nil {
			url = found[1]
		}
		return url != ""
	})
	s.all = append(s.all, &observedProcess{Process: p, metrics: url})
}

var acknowledged = regexp.MustCompile(`acknowledged (\d+)`)

// source has one submit for a while, samples all processes meanwhile if it is to
// keep a rate, and returns how many handoffs were acknowledged.
func (s *soak) source(rate int, span time.Duration) int {
	s.Helper()
	p := testworld.Start(s, "source", []string{fmt.Sprintf("%s=source %s %d", roleEnv, s.cluster.URL(), rate)}, os.Args[0])
	if rate == 0 {
		testworld.Pause(s.ctx, span)
	} else {
		source := &observedProcess{Process: p}
		s.all = append(s.all, source)
		for n := range samples {
			testworld.Pause(s.ctx, span/samples)
			s.sample()
			if (n+1)%(samples/12) == 0 {
				s.Logf("%d of %d: %.0f entries in the ledger; the servers have %v MiB", n+1, samples, s.stored[n], s.servers())
			}
		}
	}
	p.Signal(syscall.SIGTERM)
	p.Wait()
	found := acknowledged.FindStringSubmatch(p.Output())
	if found == nil {
		s.Fatalf("the source ended with:\n%s", p.Output())
	}
	n, err := strconv.Atoi(found[1])
	s.must(err)
	return n
}

// servers is the memory of each, in MiB. Of one that grows while the others don't it
// keeps, once, what it does and has: that is gone with it.
func (s *soak) servers() (mib []int) {
	for i, p := range s.all[:len(s.cluster.Nodes)] {
		now := int(p.seen[len(p.seen)-1].rssKB / 1024)
		mib = append(mib, now)
		first := int(p.seen[0].rssKB / 1024)
		if s.kept || now < 3*first+200 {
			continue
		}
		s.kept = true
		for _, what := range []string{"goroutine?debug=2", "heap"} {
			name, _, _ := strings.Cut(what, "?")
			path := filepath.Join(os.TempDir(), fmt.Sprintf("handoff-soak-%s-%s", p.Name, name))
			if err := os.WriteFile(path, []byte(s.get(s.cluster.Nodes[i].Profiles+what)), 0o600); err != nil {
				s.Error(err)
			}
			s.Logf("%s grows: %s", p.Name, path)
		}
	}
	return mib
}

var goroutines = regexp.MustCompile(`(?m)^(?:go_)?goroutines (\d+)$`)

func (s *soak) sample() {
	s.Helper()
	for _, p := range s.all {
		var f resources
		var err error
		f.rssKB, f.files, err = used(p.PID())
		s.must(err)
		text := p.Output()
		if p.metrics != "" {
			text = s.get(p.metrics)
		}
		if all := goroutines.FindAllStringSubmatch(text, -1); len(all) > 0 {
			f.goroutines, err = strconv.ParseFloat(all[len(all)-1][1], 64)
			s.must(err)
		}
		p.seen = append(p.seen, f)
	}
	engine, has := map[string]float64{}, make([]float64, len(s.cluster.Nodes))
	for i, n := range s.cluster.Nodes {
		var about struct {
			Consumers int
			Accounts  []struct {
				Streams []struct {
					Name  string `json:"name"`
					State struct {
						Messages float64
						LastSeq  float64 `json:"last_seq"`
					}
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		s.must(json.Unmarshal([]byte(s.get(n.Monitor+"/jsz?streams=true&accounts=true")), &about))
		engine[fmt.Sprint("consumers of node", i)] = float64(about.Consumers)
		for _, a := range about.Accounts {
			for _, stream := range a.Streams {
				engine[stream.Name] = max(engine[stream.Name], stream.State.Messages)
				if stream.Name == jetstream.LedgerStream {
					has[i] = stream.State.LastSeq
				}
			}
		}
	}
	s.stored = append(s.stored, engine[jetstream.LedgerStream])
	for i, last := range has {
		if lag := slices.Max(has) - last; lag > lagMax {
			s.Logf("node%d lags %.0f entries behind", i, lag)
		}
	}
	delete(engine, jetstream.LedgerStream)
	s.engine = append(s.engine, engine)
}

func (s *soak) get(url string) string {
	s.Helper()
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
	s.must(err)
	answer, err := http.DefaultClient.Do(request)
	s.must(err)
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	s.must(err)
	return string(body)
}

// used is the resident memory of a process, and how many files it has open.
func used(pid int) (rssKB, files float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(rest, &rssKB); err != nil {
		return 0, 0, err
	}
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return rssKB, float64(len(all)), err
}

// awaitClosed waits for the end of all handoffs, and returns how many have none.
func (s *soak) awaitClosed() (open int) {
	ctx, cancel := context.WithTimeout(s.ctx, closeTimeout)
	defer cancel()
	for open = 1; open > 0 && ctx.Err() == nil; testworld.Pause(ctx, time.Second) {
		open = 0
		s.must(s.b.Heads(s.ctx, func(e broker.Entry) error {
			head, err := broker.HeadOf(e)
			if err == nil && !head.State.Closed {
				open++
			}
			return err
		}))
	}
	return open
}

// median of a part of the samples, from and to in parts of all of them.
func median[T any](all []T, from, to float64, of func(T) float64) float64 {
	n := float64(len(all))
	var part []float64
	for _, x := range all[int(from*n):int(to*n)] {
		part = append(part, of(x))
	}
	slices.Sort(part)
	return part[len(part)/2]
}

// What may differ between the second fifth and the last one: the noise of a garbage
// collector and of connections that come and go.
const (
	rssNoiseKB = 48 << 10
	rssRatio   = 1.3
	countNoise = 12 // goroutines, files
	// perEntry is what a server may keep in memory of each entry of the ledger: the
	// subjects are there, and what was read or written last.
	perEntryBytes = 1500
)

// checkGrowth compares the second fifth of the samples with the last one, and prints both.
func (s *soak) checkGrowth(acked int) {
	early := func(all []resources, of func(resources) float64) float64 { return median(all, 0.2, 0.4, of) }
	late := func(all []resources, of func(resources) float64) float64 { return median(all, 0.8, 1, of) }
	one := func(x float64) float64 { return x }
	grown := median(s.stored, 0.8, 1, one) - median(s.stored, 0.2, 0.4, one)
	s.Logf("%d handoffs acknowledged, all closed; %.0f entries in the ledger", acked, s.stored[len(s.stored)-1])
	s.Logf("| process | memory, MiB | goroutines | files |")
	s.Logf("|---|---|---|---|")
	for _, p := range s.all {
		rss, grs, fds := func(f resources) float64 { return f.rssKB }, func(f resources) float64 { return f.goroutines }, func(f resources) float64 { return f.files }
		counted := "not shown" // by the servers
		if !p.server {
			counted = fmt.Sprintf("%.0f → %.0f", early(p.seen, grs), late(p.seen, grs))
		}
		s.Logf("| %s | %.0f → %.0f | %s | %.0f → %.0f |", p.Name, early(p.seen, rss)/1024, late(p.seen, rss)/1024,
			counted, early(p.seen, fds), late(p.seen, fds))
		most := early(p.seen, rss)*rssRatio + rssNoiseKB
		if p.server {
			most += grown * perEntryBytes / 1024
		} else if late(p.seen, fds) > early(p.seen, fds)+countNoise {
			s.Errorf("%s has more files open", p.Name)
		}
		if late(p.seen, rss) > most {
			s.Errorf("%s has grown", p.Name)
		}
		if late(p.seen, grs) > early(p.seen, grs)*rssRatio+countNoise {
			s.Errorf("%s has more goroutines", p.Name)
		}
	}
	var names []string
	for name := range s.engine[len(s.engine)-1] {
		names = append(names, name)
	}
	slices.Sort(names)
	s.Logf("| of the engine | messages, or number |")
	s.Logf("|---|---|")
	for _, name := range names {
		of := func(m map[string]float64) float64 { return m[name] }
		was, is := median(s.engine, 0.2, 0.4, of), median(s.engine, 0.8, 1, of)
		s.Logf("| %s | %.0f → %.0f |", name, was, is)
		if is > was*2+500 {
			s.Errorf("%s has grown", name)
		}
	}
}
