package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// crew are the processes of the agents. Each has a pipe to this one as its
// stdin, and ends when that closes: so none survives the demo, however it ends.
type crew struct {
	exe  string
	url  string
	run  string
	log  *os.File
	gone chan error // of members that ended though nobody had asked them to

	mu      sync.Mutex
	members []*member
}

type member struct {
	agent   string
	cmd     *exec.Cmd
	tether  io.Closer
	done    chan struct{}
	dismiss bool // its end is expected; guarded by crew.mu
}

// agentsLog is where the agents write what they have to say.
const agentsLog = "agents.log"

func newCrew(url, run string) (*crew, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(run, agentsLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &crew{exe: exe, url: url, run: run, log: log, gone: make(chan error, 16)}, nil
}

// hire starts all agents: two processes of the surveyor, of which one will be
// killed, the reviewer under handoff work, and one of each other.
func (c *crew) hire() error {
	script := filepath.Join(c.run, "reviewer.sh")
	if err := os.WriteFile(script, []byte(reviewerScript), 0o600); err != nil {
		return err
	}
	for _, name := range []string{surveyor, surveyor, historian, inspector, reporter} {
		if err := c.start(name, AgentCommand, name); err != nil {
			return err
		}
	}
	return c.start(reviewer, "work", "--agent", reviewer, "--", "sh", script, c.run)
}

// start runs a command of this very program in a process of its own.
func (c *crew) start(agent string, args ...string) error {
	// The second word is a command too: it runs the rest for as long as its stdin is open.
	cmd := exec.Command(c.exe, append([]string{TetherCommand}, args...)...)
	cmd.Env = environment(c.url)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	tether, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", agent, err)
	}
	m := &member{agent: agent, cmd: cmd, tether: tether, done: make(chan struct{})}
	c.mu.Lock()
	c.members = append(c.members, m)
	c.mu.Unlock()
	go c.await(m) // joined by dismissAll, through done
	return nil
}

func (c *crew) await(m *member) {
	err := m.cmd.Wait()
	close(m.done)
	c.mu.Lock()
	expected := m.dismiss
	c.mu.Unlock()
	if !expected {
		c.gone <- fmt.Errorf("the process of the %s ended though nobody had asked it to (%v)", m.agent, err)
	}
}

// environment is ours without what would lead an agent to another engine.
func environment(url string) []string {
	var env []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "NATS_") && !strings.HasPrefix(pair, "HANDOFF_") {
			env = append(env, pair)
		}
	}
	return append(env, "NATS_URL="+url)
}

// ready waits until the directory shows all processes: one that registered late
// would be taken for absent.
func (c *crew) ready(ctx context.Context, b *broker.Broker) error {
	want := map[string]int{}
	for _, m := range c.members {
		want[m.agent]++
	}
	for {
		directory, err := b.Directory(ctx)
		if err != nil {
			return err
		}
		missing := ""
		for agent, n := range want {
			if live, _, _ := directory.Load(agent); live < n {
				missing = agent
			}
		}
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the %s has not come: %w", missing, context.Cause(ctx))
		case err := <-c.gone:
			return err
		case <-time.After(pollEvery):
		}
	}
}

// kill ends a process with SIGKILL. One that is not of this crew is left alone,
// whatever number the directory has for it.
func (c *crew) kill(pid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.cmd.Process.Pid == pid && !m.dismiss {
			m.dismiss = true
			return m.cmd.Process.Kill()
		}
	}
	return fmt.Errorf("process %d is none of the demo's", pid)
}

// leaveWithin is how long the processes may take to end by themselves.
const leaveWithin = 6 * time.Second

// dismissAll ends all processes and waits for them.
func (c *crew) dismissAll() error {
	c.mu.Lock()
	for _, m := range c.members {
		m.dismiss = true
		_ = m.tether.Close() // closed already where the process is gone
	}
	c.mu.Unlock()
	late, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	for _, m := range c.members {
		select {
		case <-m.done:
		case <-late.Done():
			_ = m.cmd.Process.Kill() // ended meanwhile, if it fails
			<-m.done
		}
	}
	return c.log.Close()
}
