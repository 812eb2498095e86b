//go:build proof

//go:debug randseednop=0

// Package sim has supervisors, workers and sources live through faults on the
// engine in memory, under a fake clock, one operation at a time in an order that a
// seed gives: they crash, are frozen, cut off, late, woken twice and told too
// little, the engine restarts and forgets its queues and wake-ups. What must be
// true is checked at each append, and in the end everything has closed, once.
//
//	go test -tags proof ./tests/proof/sim -seeds 5000          # so many lives, in two minutes
//	go test -tags proof ./tests/proof/sim -seed 4711 -v        # one of them again, with all that happens in it
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
	seeds   = flag.Int("seeds", 200, "how many lives")
	oneSeed = flag.Uint64("seed", 0, "this life alone; -v tells all that happens in it")
)

// shareEnv makes the test binary one of several that share the seeds: which one,
// of how many. One processor for each: lives side by side in one would take turns.
const shareEnv = "HANDOFF_SIM_SHARE"

// TestSim lives -seeds lives, on all processors.
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
	if testworld.Race { // looks for races, and not for what seeds find
		*seeds = min(*seeds, 50)
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
			cmd := exec.Command(os.Args[0], "-test.run=^TestShare$", "-test.timeout=30m", "-seeds="+strconv.Itoa(*seeds))
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
					t.Errorf("seed %d: %s\n\tgo test -tags proof ./tests/proof/sim -run TestSim -seed %d -v\n\tall that happened: %s", l.Seed, what, l.Seed, l.File)
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
		t.Errorf("%d lives of %d", done, *seeds)
	}
	t.Logf("%d lives in %v: %d handoffs, %d steps, %d appends, %d faults; all had closed %v after the last fault at the latest",
		done, time.Since(began).Round(100*time.Millisecond), all.handoffs, all.steps, all.appends, all.faults, slowest.Round(time.Second))
	t.Logf("faults: %v", kinds)
	t.Logf("outcomes: %v", outcomes)
}

// seedReport is what a share says of one life.
type seedReport struct {
	Seed                             uint64
	Handoffs, Steps, Appends, Faults int
	Kinds                            map[string]int
	Outcomes                         map[string]int
	Took                             time.Duration
	Found                            []string
	Story                            uint64 // a hash of all that happened
	File                             string // all that happened, where something was found
}

const linePrefix = "sim: "

// TestShare is the part of TestSim that each of its processes has.
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

// simulate is a life in which all that is random comes from the seed, if it is the
// only one in the process, and its story: what happened, when and in which order.
func simulate(t *testing.T, seed uint64) (found []string, f figures, story []byte) {
	//lint:ignore SA1019 what back-offs are spread by has no source of its own
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

// What of replayedLives must tell the same story twice. It is not all of them: where
// several things are ready for one goroutine the runtime chooses, and not by the
// seed. Whatever TestSim finds, it keeps the story of.
const (
	replayedSeeds = 40
	sameMin       = 24
)

// TestReplay lives some lives twice: a seed is worth something only if it tells the
// same story again.
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
	t.Logf("%d of %d lives told the same story twice", same, len(first))
	if len(first) != replayedSeeds || same < sameMin {
		t.Errorf("%d of %d lives told the same story twice, want %d", same, len(first), sameMin)
	}
}
