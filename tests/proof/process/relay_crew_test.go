//go:build proof

package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// deed is what the crew did to a worker's process while it had a handoff in its
// hands: it was stopped for longer than its lease, or killed.
type deed struct {
	fault  fault
	holder string
	ticket string
	fence  uint64
	at     time.Time
	// overtaken is that the lease was lost before the deed, together with that of
	// another handoff of the same worker.
	overtaken bool
}

// crew runs the worker processes of a relay, and stops and kills them when their
// dice say so.
type crew struct {
	b   *broker.Broker
	env []string

	running sync.WaitGroup
	mu      sync.Mutex
	deeds   []deed
	started int
	errs    []error
}

// recruit starts workers for every agent. They run until ctx ends; dismiss joins them.
func recruit(ctx context.Context, b *broker.Broker, workers int, env []string) (c *crew, dismiss func()) {
	c = &crew{b: b, env: env}
	ctx, cancel := context.WithCancel(ctx)
	for i := range workers {
		for _, agent := range relayAgents {
			c.running.Go(func() {
				if err := c.tend(ctx, agent); err != nil {
					c.failed(fmt.Errorf("worker %s %d: %w", agent, i, err))
				}
			})
		}
	}
	return c, func() {
		cancel()
		c.running.Wait()
	}
}

func (c *crew) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

func (c *crew) note(d deed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deeds = append(c.deeds, d)
}

// err is what went wrong with the crew itself so far.
func (c *crew) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

// tend keeps one worker running: another process for each that was killed.
func (c *crew) tend(ctx context.Context, agent string) error {
	for ctx.Err() == nil {
		p, err := c.start(agent)
		if err != nil {
			return err
		}
		killed, err := c.watch(ctx, p)
		if !killed { // it has not heard yet that it is over
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		ended := p.end()
		if err != nil || !killed && ended != nil {
			return fmt.Errorf("%w\n%s", errors.Join(err, ended), tail(p.log.String(), 4_000))
		}
		if strings.Contains(p.log.String(), "DATA RACE") {
			return fmt.Errorf("a data race\n%s", tail(p.log.String(), 20_000))
		}
	}
	return nil
}

func tail(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// relayProcess is one process of a worker.
type relayProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string  // of its stdout; closed at its end
	log    bytes.Buffer // its stderr, whole once it has ended
	holder string
}

func (c *crew) start(agent string) (*relayProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-test.run=^TestRelayWorker$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), append(c.env, relayAgentVar+"="+agent)...)
	p := &relayProcess{cmd: cmd, lines: make(chan string, 2*relaySlots)}
	cmd.Stderr = &p.log
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.started++
	c.mu.Unlock()
	go func() { // joined by end, which reads until the channel is closed
		defer close(p.lines)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	return p, nil
}

// drainPatience is how long a worker may take to end. After a failure its handlers
// may wait for a driver that has given up.
const drainPatience = 15 * time.Second

// end waits for the end of the process, which must have been told.
func (p *relayProcess) end() error {
	overdue := time.AfterFunc(drainPatience, func() { _ = p.cmd.Process.Kill() })
	defer overdue.Stop()
	for range p.lines {
	}
	return p.cmd.Wait()
}

// watch does what the worker's dice say, until the worker was killed, ends by
// itself, or the relay is over.
func (c *crew) watch(ctx context.Context, p *relayProcess) (killed bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case line, ok := <-p.lines:
			if !ok {
				return false, errors.New("ended by itself")
			}
			what, rest, _ := strings.Cut(line, " ")
			switch fault(what) {
			case "ready":
				p.holder = rest
			case dies:
				return true, c.kill(ctx, p, rest)
			case sleeps:
				if err := c.freeze(ctx, p, rest); err != nil {
					return false, err
				}
			}
		}
	}
}

func (p *relayProcess) deed(f fault, text string) (d deed, err error) {
	d = deed{fault: f, holder: p.holder, at: time.Now()}
	_, err = fmt.Sscanf(text, "%s %d", &d.ticket, &d.fence)
	return d, err
}

func (c *crew) kill(ctx context.Context, p *relayProcess, text string) error {
	d, err := p.deed(dies, text)
	if err == nil {
		err = c.overtaken(ctx, &d)
	}
	_ = p.cmd.Process.Kill() // in any case: it has a handler that never returns
	c.note(d)
	return err
}

// overtaken finds out whether the handoff is the worker's no more.
func (c *crew) overtaken(ctx context.Context, d *deed) error {
	state, err := c.b.Status(ctx, d.ticket)
	d.overtaken = state.Fence != d.fence
	return err
}

// freezePatience is how long a supervisor may take to find a stopped worker out,
// and its late result to come in.
const freezePatience = time.Minute

// freeze stops the process until the ledger says that its lease is lost, lets it
// go on, and waits until its late result was parked.
func (c *crew) freeze(ctx context.Context, p *relayProcess, text string) error {
	d, err := p.deed(sleeps, text)
	if err != nil {
		return err
	}
	if err := c.overtaken(ctx, &d); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezePatience)
	defer cancel()
	_, err = c.b.Wait(ctx, d.ticket, func(s protocol.State) bool { return s.Fence != d.fence })
	if failed := p.cmd.Process.Signal(syscall.SIGCONT); err == nil {
		err = failed
	}
	c.note(d)
	if err != nil {
		return fmt.Errorf("stopped with %s: %w", d.ticket, err)
	}
	if _, err := fmt.Fprintf(p.stdin, "go %d\n", d.fence); err != nil {
		return err
	}
	if _, err := c.b.Wait(ctx, d.ticket, func(s protocol.State) bool { return slices.Contains(s.LateFences, d.fence) }); err != nil {
		return fmt.Errorf("the late result of %s, fence %d: %w", d.ticket, d.fence, err)
	}
	return nil
}
