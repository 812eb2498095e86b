package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/agenthandoff/handoff/broker"
)

// Workers may be processes of their own, as they are in production. They talk with the measuring
// process in lines of JSON: an assignment, then controls, on standard input; reports on
// standard output. A worker process ends with its standard input.

// assignment is the part of the load that a worker process takes.
type assignment struct {
	Source   string   `json:"source"`
	Agents   []string `json:"agents"`
	Slots    int      `json:"slots"` // for each agent
	Deferred float64  `json:"deferred"`
}

// control begins and ends the measurement. A worker process answers each with a measurement: the
// first is empty, and says that every completion after the reported ones is counted.
type control struct {
	Measure bool `json:"measure"`
}

// workerReport is one report of a worker process: how many handoffs have completed so far, and
// the answer to a control.
type workerReport struct {
	Completed int64        `json:"completed"`
	Measured  *measurement `json:"measured,omitempty"`
	Error     string       `json:"error,omitempty"`
}

type measurement struct {
	InWindow   int64             `json:"in_window"`
	Deferred   int64             `json:"deferred"`
	CPU        time.Duration     `json:"cpu"`
	PeakBytes  int64             `json:"peak_bytes"`
	Histograms map[string][]byte `json:"tallies"` // histograms, compressed
}

// reportInterval is the time between two reports of a worker process. Submitters wait for them
// while too many handoffs are open.
const reportInterval = 10 * time.Millisecond

// ServeProcess runs a worker process until in ends. The measuring process writes its assignment
// to in and reads its reports from out.
func ServeProcess(ctx context.Context, engine broker.Engine, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	controls := json.NewDecoder(in)
	var assigned assignment
	if err := controls.Decode(&assigned); err != nil {
		return fmt.Errorf("the assignment of a worker process: %w", err)
	}
	rec := newRecorder(newClock(), assigned.Source)
	b, err := broker.New(engine, broker.Config{Observer: rec})
	if err != nil {
		return err
	}
	reports := &reportWriter{out: json.NewEncoder(out)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait(ctx, reportInterval) {
			reports.write(workerReport{Completed: rec.completed.Load()})
		}
	})
	wg.Go(func() {
		defer cancel() // the end of in ends the process
		atStart := usage{}
		for {
			var c control
			if err := controls.Decode(&c); err != nil {
				return
			}
			rec.measuring.Store(c.Measure)
			if c.Measure {
				atStart = readUsage()
				reports.write(workerReport{Completed: rec.completed.Load(), Measured: &measurement{}})
				continue
			}
			m, err := rec.measurement(atStart)
			if err != nil {
				reports.write(workerReport{Error: err.Error()})
				return
			}
			reports.write(workerReport{Completed: rec.completed.Load(), Measured: m})
		}
	})
	err = runWorkers(ctx, b, assigned.Deferred, assigned.Agents, assigned.Slots)
	if err != nil {
		reports.write(workerReport{Error: err.Error()})
	}
	cancel()
	wg.Wait()
	reports.write(workerReport{Completed: rec.completed.Load()})
	return err
}

type reportWriter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (t *reportWriter) write(report workerReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(report) // an error means that the reader has ended, which ends this process
}

func (r *recorder) measurement(atStart usage) (*measurement, error) {
	now := readUsage()
	m := &measurement{InWindow: r.inWindow.Load(), Deferred: r.deferred.Load(), CPU: now.cpu - atStart.cpu, PeakBytes: now.peakBytes, Histograms: map[string][]byte{}}
	for name, t := range r.histograms {
		t.mu.Lock()
		body, err := t.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		m.Histograms[name] = body
	}
	return m, nil
}

// merge adds the measurement of a worker process.
func (r *recorder) merge(m *measurement) error {
	for name, body := range m.Histograms {
		hist, err := hdrhistogram.Decode(body)
		if err != nil {
			return err
		}
		t := r.histograms[name]
		if t == nil {
			return fmt.Errorf("a worker process measured %q", name)
		}
		t.mu.Lock()
		t.hist.Merge(hist)
		t.mu.Unlock()
	}
	r.inWindow.Add(m.InWindow)
	r.deferred.Add(m.Deferred)
	return nil
}

// processGroup is the worker processes of a round.
type processGroup struct {
	rec       *recorder
	processes []*workerProcess
}

type workerProcess struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	control   *json.Encoder
	reports   chan workerReport
	completed int64 // by its last report
	exited    chan error
}

// startProcesses starts the processes. They share the agents or, if there are more processes
// than agents, the slots of every agent.
func startProcesses(ctx context.Context, cfg Config, url string, rec *recorder, agents []string) (*processGroup, error) {
	c := &processGroup{rec: rec}
	for p := range cfg.Processes {
		assigned := assignment{Source: rec.source, Deferred: cfg.Deferred}
		if len(agents) >= cfg.Processes {
			for i := p; i < len(agents); i += cfg.Processes {
				assigned.Agents = append(assigned.Agents, agents[i])
			}
			assigned.Slots = max(1, cfg.Slots/len(agents))
		} else {
			assigned.Agents, assigned.Slots = agents, max(1, cfg.Slots/len(agents)/cfg.Processes)
		}
		m, err := startProcess(cfg.Spawn(ctx, url), assigned)
		if err != nil {
			return c, err
		}
		c.processes = append(c.processes, m)
	}
	return c, nil
}

func startProcess(cmd *exec.Cmd, assigned assignment) (*workerProcess, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker process: %w", err)
	}
	m := &workerProcess{cmd: cmd, in: in, control: json.NewEncoder(in), reports: make(chan workerReport, 16), exited: make(chan error, 1)}
	go func() { // joined by exited
		decoder := json.NewDecoder(out)
		for {
			var report workerReport
			if err := decoder.Decode(&report); err != nil {
				break
			}
			m.reports <- report
		}
		close(m.reports)
		m.exited <- cmd.Wait()
	}()
	return m, m.control.Encode(assigned)
}

// run forwards the measurements of the processes until ctx ends, and then ends them.
func (c *processGroup) run(ctx context.Context, reports chan<- *measurement) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.processes))
	for i, m := range c.processes {
		wg.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = m.in.Close() })
			defer end()
			for report := range m.reports {
				for range report.Completed - m.completed {
					c.rec.completed.Add(1)
					c.rec.onCompleted()
				}
				m.completed = max(m.completed, report.Completed) // two concurrent reports may be out of order
				if report.Measured != nil {
					reports <- report.Measured
				}
				if report.Error != "" {
					errs[i] = fmt.Errorf("a worker process: %s", report.Error)
				}
			}
			if err := <-m.exited; err != nil && errs[i] == nil && ctx.Err() == nil {
				errs[i] = fmt.Errorf("a worker process: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// setMeasuring begins or ends the measurement in all worker processes, and waits for the answer
// of each.
func (r *round) setMeasuring(ctx context.Context, measure bool) ([]*measurement, error) {
	if r.processes == nil {
		return nil, nil
	}
	for _, m := range r.processes.processes {
		if err := m.control.Encode(control{measure}); err != nil {
			return nil, err
		}
	}
	var answers []*measurement
	for range r.processes.processes {
		select {
		case m := <-r.measurements:
			answers = append(answers, m)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answers, nil
}
