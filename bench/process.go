package bench

import (
	"bufio"
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

// Workers may be processes of their own, as they are in production. The words between
// them and the process that measures are lines of JSON: an assignment, then orders, on
// standard input; reports on standard output. The end of standard input is the end.

// assignment is what a worker process is to do.
type assignment struct {
	Source   string   `json:"source"`
	Agents   []string `json:"agents"`
	Slots    int      `json:"slots"` // for each agent
	Deferred float64  `json:"deferred"`
}

// order begins and ends the measurement.
type order struct {
	Measure bool `json:"measure"`
}

// told is what a worker process tells: how many have completed so far, and at the end of
// the measurement what came of it.
type told struct {
	Completed int64     `json:"completed"`
	Measured  *measured `json:"measured,omitempty"`
	Error     string    `json:"error,omitempty"`
}

type measured struct {
	InWindow  int64             `json:"in_window"`
	Deferred  int64             `json:"deferred"`
	CPU       time.Duration     `json:"cpu"`
	PeakBytes int64             `json:"peak_bytes"`
	Tallies   map[string][]byte `json:"tallies"` // histograms, compressed
}

// reportEvery is how often a worker process tells how many have completed: submitters
// wait for that where too many are open.
const reportEvery = 10 * time.Millisecond

// ServeProcess is a worker process: it works as the process that started it says on in,
// and tells on out, until in ends.
func ServeProcess(ctx context.Context, engine broker.Engine, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := json.NewDecoder(in)
	var what assignment
	if err := lines.Decode(&what); err != nil {
		return fmt.Errorf("the assignment of a worker process: %w", err)
	}
	rec := newRecorder(newClock(), what.Source)
	b, err := broker.New(engine, broker.Config{Observer: rec})
	if err != nil {
		return err
	}
	say := &teller{out: json.NewEncoder(out)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait(ctx, reportEvery) {
			say.tell(told{Completed: rec.completed.Load()})
		}
	})
	wg.Go(func() {
		defer cancel() // the end of what is read is the end
		begun := usage{}
		for {
			var o order
			if err := lines.Decode(&o); err != nil {
				return
			}
			rec.measuring.Store(o.Measure)
			if o.Measure {
				begun = readUsage()
				continue
			}
			m, err := rec.measured(begun)
			if err != nil {
				say.tell(told{Error: err.Error()})
				return
			}
			say.tell(told{Completed: rec.completed.Load(), Measured: m})
		}
	})
	err = work(ctx, b, what.Deferred, what.Agents, what.Slots)
	if err != nil {
		say.tell(told{Error: err.Error()})
	}
	cancel()
	wg.Wait()
	say.tell(told{Completed: rec.completed.Load()})
	return err
}

type teller struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (t *teller) tell(what told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(what) // the reader may have ended: so will this process
}

func (r *recorder) measured(begun usage) (*measured, error) {
	now := readUsage()
	m := &measured{InWindow: r.inWindow.Load(), Deferred: r.deferred.Load(), CPU: now.cpu - begun.cpu, PeakBytes: now.peakByte, Tallies: map[string][]byte{}}
	for name, t := range r.tallies {
		t.mu.Lock()
		body, err := t.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		m.Tallies[name] = body
	}
	return m, nil
}

// merge adds what a worker process has measured.
func (r *recorder) merge(m *measured) error {
	for name, body := range m.Tallies {
		hist, err := hdrhistogram.Decode(body)
		if err != nil {
			return err
		}
		t := r.tallies[name]
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

// crew are the worker processes of a round.
type crew struct {
	rec     *recorder
	members []*member
}

type member struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	write *json.Encoder
	lines chan told // with something to wait for
	last  int64     // completed, as it told
	ended chan error
}

// startCrew starts the processes. They share the agents, or where there are more
// processes than agents, every agent's slots.
func startCrew(ctx context.Context, cfg Config, url string, rec *recorder, agents []string) (*crew, error) {
	c := &crew{rec: rec}
	for p := range cfg.Processes {
		what := assignment{Source: rec.source, Deferred: cfg.Deferred}
		if len(agents) >= cfg.Processes {
			for i := p; i < len(agents); i += cfg.Processes {
				what.Agents = append(what.Agents, agents[i])
			}
			what.Slots = max(1, cfg.Slots/len(agents))
		} else {
			what.Agents, what.Slots = agents, max(1, cfg.Slots/len(agents)/cfg.Processes)
		}
		m, err := startMember(cfg.Spawn(ctx, url), what)
		if err != nil {
			return c, err
		}
		c.members = append(c.members, m)
	}
	return c, nil
}

func startMember(cmd *exec.Cmd, what assignment) (*member, error) {
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
	m := &member{cmd: cmd, in: in, write: json.NewEncoder(in), lines: make(chan told, 16), ended: make(chan error, 1)}
	go func() { // joined by ended
		lines := bufio.NewReader(out)
		decoder := json.NewDecoder(lines)
		for {
			var t told
			if err := decoder.Decode(&t); err != nil {
				break
			}
			m.lines <- t
		}
		close(m.lines)
		m.ended <- cmd.Wait()
	}()
	return m, m.write.Encode(what)
}

// run passes on what the processes tell until ctx ends, and then ends them.
func (c *crew) run(ctx context.Context, reports chan<- *measured) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.members))
	for i, m := range c.members {
		wg.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = m.in.Close() })
			defer end()
			for t := range m.lines {
				for range t.Completed - m.last {
					c.rec.completed.Add(1)
					c.rec.done()
				}
				m.last = max(m.last, t.Completed) // two that were told at once may have changed places
				if t.Measured != nil {
					reports <- t.Measured
				}
				if t.Error != "" {
					errs[i] = fmt.Errorf("a worker process: %s", t.Error)
				}
			}
			if err := <-m.ended; err != nil && errs[i] == nil && ctx.Err() == nil {
				errs[i] = fmt.Errorf("a worker process: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// order tells all processes that the measurement begins or ends.
func (c *crew) order(measure bool) error {
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.write.Encode(order{measure}))
	}
	return errors.Join(errs...)
}
