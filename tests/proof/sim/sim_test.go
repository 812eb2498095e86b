//go:build proof

//go:debug randseednop=0

// Package sim simulates supervisors, workers and sources under faults on the engine in memory. A
// fake clock runs, and a seed gives the order of operations, one at a time. Processes crash, freeze,
// lose their connection, are late, and get duplicate or no hints; the engine restarts and loses its
// queues and wake-ups. A judge checks each append, and that every handoff closes, once.
//
//	go test -tags proof ./tests/proof/sim -seeds 5000          # as many simulations, in ten minutes
//	go test -tags proof ./tests/proof/sim -seed 4711 -v        # one of them again, with its story
package sim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/testworld"
)

var (
	seeds   = flag.Int("seeds", 200, "how many simulations")
	oneSeed = flag.Uint64("seed", 0, "simulate this seed alone; -v prints its story")

	partitions = flag.Int("partitions", 1, "into how many partitions the ledger is divided")

	writePlanted = flag.Bool("write-planted", false, "record the seeds that find the planted bugs")
)

// shareEnv makes the test binary one of several processes that share the seeds: its number, and the
// number of all. Each has one processor.
const shareEnv = "HANDOFF_SIM_SHARE"

// TestSim runs -seeds simulations, on all processors.
func TestSim(t *testing.T) {
	if *oneSeed != 0 {
		found, f, story := simulate(t, *oneSeed)
		if testing.Verbose() {
			_, _ = os.Stdout.Write(story)
		}
		t.Logf("%+v", f)
		for _, what := range found {
			t.Error(what)
		}
		return
	}
	if testworld.Race { // the race detector needs few seeds
		*seeds = min(*seeds, 25)
	}
	began := time.Now()
	many := runtime.NumCPU()
	var mu sync.Mutex
	var all figures
	var slowest time.Duration
	done := 0
	kinds := map[string]int{}
	outcomes := map[string]int{}
	var sharing sync.WaitGroup
	for i := range many {
		sharing.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestShare$", "-test.timeout=30m", "-seeds="+strconv.Itoa(*seeds), "-partitions="+strconv.Itoa(*partitions))
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d/%d", shareEnv, i, many), "GOMAXPROCS=1", "GOGC=800")
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Error(err)
				return
			}
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				text, ok := strings.CutPrefix(lines.Text(), linePrefix)
				if !ok {
					continue
				}
				var l seedReport
				if err := json.Unmarshal([]byte(text), &l); err != nil {
					t.Error(err)
					continue
				}
				mu.Lock()
				done++
				all.handoffs, all.steps, all.appends, all.faults = all.handoffs+l.Handoffs, all.steps+l.Steps, all.appends+l.Appends, all.faults+l.Faults
				slowest = max(slowest, l.Took)
				for k, n := range l.Kinds {
					kinds[k] += n
				}
				for k, n := range l.Outcomes {
					outcomes[k] += n
				}
				for _, what := range l.Found {
					t.Errorf("seed %d: %s\n\tgo test -tags proof ./tests/proof/sim -run TestSim -seed %d -v\n\tits story: %s", l.Seed, what, l.Seed, l.File)
				}
				if l.Handoffs < handoffsMin || l.Steps < stepsMin || l.Faults < faultsMin {
					t.Errorf("seed %d: %d handoffs, %d steps, %d faults", l.Seed, l.Handoffs, l.Steps, l.Faults)
				}
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("share %d of %d: %v", i, many, err)
			}
		})
	}
	sharing.Wait()
	if done != *seeds {
		t.Errorf("%d simulations of %d", done, *seeds)
	}
	t.Logf("%d simulations in %v: %d handoffs, %d steps, %d appends, %d faults; all had closed %v after the last fault at the latest",
		done, time.Since(began).Round(100*time.Millisecond), all.handoffs, all.steps, all.appends, all.faults, slowest.Round(time.Second))
	reportKinds(t, kinds)
	t.Logf("outcomes: %v", outcomes)
}

// reportKinds logs the faults, and fails where too few calls for bids met them.
func reportKinds(t *testing.T, kinds map[string]int) {
	t.Helper()
	t.Logf("faults: %v", kinds)
	if n := kinds["call for bids"]; n < callsMin && *seeds >= 200 {
		t.Errorf("%d calls for bids, of at least %d", n, callsMin)
	}
}

// seedReport is the report of one simulation.
type seedReport struct {
	Seed                             uint64
	Handoffs, Steps, Appends, Faults int
	Kinds                            map[string]int
	Outcomes                         map[string]int
	Took                             time.Duration
	Found                            []string
	Story                            uint64 // a hash of the story
	File                             string // the story, if a fault was found
}

const linePrefix = "sim: "

// TestShare is the part of TestSim in each of its processes.
func TestShare(t *testing.T) {
	var which, of uint64
	if _, err := fmt.Sscanf(os.Getenv(shareEnv), "%d/%d", &which, &of); err != nil {
		t.Skip("a part of TestSim")
	}
	for seed := which + 1; seed <= uint64(*seeds); seed += of {
		found, f, story := simulate(t, seed)
		h := fnv.New64a()
		_, _ = h.Write(story)
		l := seedReport{seed, f.handoffs, f.steps, f.appends, f.faults, f.kinds, figureCounts(f), f.took, found, h.Sum64(), ""}
		if len(found) > 0 {
			l.File = filepath.Join(os.TempDir(), fmt.Sprintf("handoff-sim-seed-%d.txt", seed))
			if err := os.WriteFile(l.File, story, 0o600); err != nil {
				t.Error(err)
			}
		}
		printReport(l)
	}
}

func figureCounts(f figures) map[string]int {
	all := map[string]int{}
	for outcome, n := range f.outcomes {
		all[string(outcome)] = n
	}
	return all
}

func printReport(l seedReport) {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	fmt.Println(linePrefix + string(text))
}

// simulate runs a simulation in which all randomness comes from the seed, if it is the only one in
// the process. It returns the faults found and its story: all operations in order, with their times.
func simulate(t *testing.T, seed uint64) (found []string, f figures, story []byte) {
	//lint:ignore SA1019 the jitter of back-offs uses the global source
	rand.Seed(int64(seed))
	uuid.SetRand(&randomBytes{PCG: randv2.NewPCG(seed, 3)})
	defer uuid.SetRand(nil)
	var mu sync.Mutex
	var told bytes.Buffer
	found, f = run(t, seed, none, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(&told, format+"\n", args...)
	})
	return found, f, told.Bytes()
}

// randomBytes are random bytes for UUIDs.
type randomBytes struct {
	mu sync.Mutex
	*randv2.PCG
}

func (r *randomBytes) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.Uint64())
		copy(b[i:], word[:])
	}
	return len(b), nil
}

// How many of replayedSeeds must have the same story twice. Not all do: if several channels are
// ready, the runtime chooses at random. TestSim keeps the story of each fault that it finds.
const (
	replayedSeeds = 40
	sameMin       = 24
)

// TestReplay runs some simulations twice: a seed is useful only if its story is the same again.
func TestReplay(t *testing.T) {
	if testworld.Race {
		t.Skip("the race detector has the runtime shuffle goroutines: run it without -race")
	}
	stories := func() map[uint64]uint64 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestShare$", "-seeds="+strconv.Itoa(replayedSeeds))
		cmd.Env = append(os.Environ(), shareEnv+"=0/1", "GOMAXPROCS=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		all := map[uint64]uint64{}
		for text := range strings.Lines(string(out)) {
			if text, ok := strings.CutPrefix(text, linePrefix); ok {
				var l seedReport
				if err := json.Unmarshal([]byte(text), &l); err != nil {
					t.Fatal(err)
				}
				all[l.Seed] = l.Story
			}
		}
		return all
	}
	first, second := stories(), stories()
	same := 0
	for seed, story := range first {
		if second[seed] == story {
			same++
		}
	}
	t.Logf("%d of %d seeds had the same story twice", same, len(first))
	if len(first) != replayedSeeds || same < sameMin {
		t.Errorf("%d of %d seeds had the same story twice, want %d", same, len(first), sameMin)
	}
}
