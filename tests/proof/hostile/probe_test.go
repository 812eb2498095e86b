//go:build proof

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// serve has an agent work until the test ends.
func (s *site) serve(agent string, w access, h worker.HandlerFunc) {
	s.Helper()
	worker, err := w.worker(worker.Config{Agent: agent, Concurrency: 4, DrainTimeout: -1}, h)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	leave := sync.OnceFunc(func() { cancel(); <-ended })
	s.leave = append(s.leave, leave)
	s.Cleanup(leave)
}

// probe has one honest handoff after another done, one each second at most, until stop
// is closed, or so many are done. It returns the longest time of one.
func (s *site) probe(source access, most int, stop <-chan struct{}) (slowest time.Duration, n int) {
	s.Helper()
	for tick := time.NewTicker(time.Second); n < most; n++ {
		begun := time.Now()
		limited, cancel := context.WithTimeout(s.ctx, watchdogTimeout)
		ticket, err := source.submit(limited, protocol.Package{Target: protocol.Target{Agent: server}, Reason: "honest", Task: protocol.Task{Description: "work"}})
		if err == nil {
			var state protocol.State
			if state, err = source.wait(limited, ticket); err == nil && state.Outcome != protocol.OutcomeSuccess {
				err = fmt.Errorf("it ended %s: %s", state.Outcome, state.Message)
			}
		}
		cancel()
		if err != nil {
			s.Errorf("probe %d, %s, after %v: %v", n, ticket, time.Since(begun), err)
			return slowest, n
		}
		slowest = max(slowest, time.Since(begun))
		select {
		case <-tick.C:
		case <-stop:
			return slowest, n + 1
		}
	}
	return slowest, n
}

// checkSupervised has a deadline pass that only a supervisor sees.
func (s *site) checkSupervised(source access) {
	s.Helper()
	policy := protocol.PolicyOverrides{}
	if err := json.Unmarshal([]byte(`{"on_deadline":"close"}`), &policy); err != nil {
		s.Fatal(err)
	}
	pkg := protocol.Package{Target: protocol.Target{Agent: absent}, Reason: "honest", Task: protocol.Task{Description: "never done"}, Policy: policy}
	pkg.Constraints.Deadline = time.Now().UTC().Truncate(time.Microsecond).Add(2 * time.Second)
	limited, cancel := context.WithTimeout(s.ctx, watchdogTimeout)
	defer cancel()
	ticket, err := source.submit(limited, pkg)
	if err != nil {
		s.Fatal(err)
	}
	if state, err := source.wait(limited, ticket); err != nil || state.Outcome == protocol.OutcomeSuccess {
		s.Errorf("a deadline that passed: %s %s, %v", state.Phase, state.Outcome, err)
	}
}

// checkProcesses looks after the processes, and ends them.
func (s *site) checkProcesses() {
	s.Helper()
	for _, p := range s.processes {
		peak := memoryPeak(p)
		s.Logf("%-10s %4d MB at most", p.Name, peak>>20)
		if !p.Running() || p.PID() != s.pids[p.Name] || strings.Contains(p.Output(), "panic") {
			s.Errorf("%s has ended, or panicked", p.Name)
		}
		if peak > memoryBytesMax {
			s.Errorf("%s had %d MB", p.Name, peak>>20)
		}
	}
	for _, leave := range s.leave {
		leave()
	}
	for i := len(s.processes) - 1; i >= 0; i-- { // the server last
		p := s.processes[i]
		p.Signal(syscall.SIGINT)
		begun, ended := time.Now(), make(chan struct{})
		go func() { p.Wait(); close(ended) }()
		select {
		case <-ended:
			s.Logf("%-10s ended %v after Ctrl-C", p.Name, time.Since(begun).Round(100*time.Millisecond))
		case <-time.After(watchdogTimeout):
			s.Errorf("%s does not end at Ctrl-C", p.Name)
		}
	}
}
