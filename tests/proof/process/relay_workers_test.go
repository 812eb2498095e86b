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
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// injection is a fault of a worker's process while it held a handoff: the process was stopped for
// longer than its lease, or killed.
type injection struct {
	fault  fault
	holder string
	ticket string
	fence  uint64
	at     time.Time
	// overtaken says that the lease was lost before, together with that of another handoff of
	// the same worker.
	overtaken bool
}

// relayWorkers runs the worker processes of a relay, and stops and kills them as their dice
// say.
type relayWorkers struct {
	b   *broker.Broker
	env []string

	running    sync.WaitGroup
	mu         sync.Mutex
	injections []injection
	started    int
	errs       []error
}

// startRelayWorkers starts workers for every agent. They run until ctx ends; dismiss joins them.
func startRelayWorkers(ctx context.Context, b *broker.Broker, workers int, env []string) (c *relayWorkers, stop func()) {
	c = &relayWorkers{b: b, env: env}
	ctx, cancel := context.WithCancel(ctx)
	for i := range workers {
		for _, agent := range relayAgents {
			c.running.Go(func() {
				if err := c.keepRunning(ctx, agent); err != nil {
					c.addError(fmt.Errorf("worker %s %d: %w", agent, i, err))
				}
			})
		}
	}
	return c, func() {
		cancel()
		c.running.Wait()
	}
}

func (c *relayWorkers) addError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

func (c *relayWorkers) addInjection(d injection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.injections = append(c.injections, d)
}

// err returns the errors so far.
func (c *relayWorkers) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.errs...)
}

// keepRunning keeps a worker running, with a new process after each kill.
func (c *relayWorkers) keepRunning(ctx context.Context, agent string) error {
	for ctx.Err() == nil {
		p, err := c.start(agent)
		if err != nil {
			return err
		}
		killed, err := c.injectFaults(ctx, p)
		if !killed { // the relay is over
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		ended := p.wait()
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

func (c *relayWorkers) start(agent string) (*relayProcess, error) {
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

// drainTimeout is how long a worker may take to end. After a failure its handlers
// may wait for a driver that has given up.
const drainTimeout = 15 * time.Second

// wait waits for the end of the process, which must have been told.
func (p *relayProcess) wait() error {
	overdue := time.AfterFunc(drainTimeout, func() { _ = p.cmd.Process.Kill() })
	defer overdue.Stop()
	for range p.lines {
	}
	return p.cmd.Wait()
}

// injectFaults does what the worker's dice say, until the worker was killed, ends by
// itself, or the relay is over.
func (c *relayWorkers) injectFaults(ctx context.Context, p *relayProcess) (killed bool, err error) {
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

func (p *relayProcess) parseInjection(f fault, text string) (d injection, err error) {
	d = injection{fault: f, holder: p.holder, at: time.Now()}
	_, err = fmt.Sscanf(text, "%s %d", &d.ticket, &d.fence)
	return d, err
}

func (c *relayWorkers) kill(ctx context.Context, p *relayProcess, text string) error {
	d, err := p.parseInjection(dies, text)
	if err == nil {
		err = c.overtaken(ctx, &d)
	}
	_ = p.cmd.Process.Kill() // in any case: it has a handler that never returns
	c.addInjection(d)
	return err
}

// overtaken finds out whether the handoff is the worker's no more.
func (c *relayWorkers) overtaken(ctx context.Context, d *injection) error {
	state, err := c.b.Status(ctx, d.ticket)
	d.overtaken = state.Fence != d.fence
	return err
}

// freezeTimeout is how long a supervisor may take to find a stopped worker out,
// and its late result to come in.
const freezeTimeout = time.Minute

// freeze stops the process until the ledger says that its lease is lost, lets it
// go on, and waits until its late result was parked.
func (c *relayWorkers) freeze(ctx context.Context, p *relayProcess, text string) error {
	d, err := p.parseInjection(sleeps, text)
	if err != nil {
		return err
	}
	if err := c.overtaken(ctx, &d); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	_, err = brokertest.Wait(ctx, c.b, d.ticket, func(s protocol.State) bool { return s.Fence != d.fence })
	if failed := p.cmd.Process.Signal(syscall.SIGCONT); err == nil {
		err = failed
	}
	c.addInjection(d)
	if err != nil {
		return fmt.Errorf("stopped with %s: %w", d.ticket, err)
	}
	if _, err := fmt.Fprintf(p.stdin, "go %d\n", d.fence); err != nil {
		return err
	}
	if _, err := brokertest.Wait(ctx, c.b, d.ticket, func(s protocol.State) bool { return slices.Contains(s.LateFences, d.fence) }); err != nil {
		return fmt.Errorf("the late result of %s, fence %d: %w", d.ticket, d.fence, err)
	}
	return nil
}
