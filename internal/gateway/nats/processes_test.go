//go:build unix

package natsgateway_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// The commands themselves, each a process, and the worker's with no more rights
// than to ask a gateway: one gateway is killed with SIGKILL under a handoff, and what the
// program inside submits goes the same way.
func TestProcessesAcrossAccounts(t *testing.T) {
	t.Parallel()
	w := apart(t)
	w.register("helper")
	bin, dir := testworld.Handoff(t), t.TempDir()
	script := filepath.Join(dir, "agent.sh")
	body := `#!/bin/sh
touch "$0.began"
while [ ! -e "$0.finish" ]; do sleep 0.1; done
T=$("` + bin + `" submit --to helper --reason 'a part' --task 'help') || exit 65
echo "$T"
`
	if err := os.WriteFile(script, []byte(body), 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() *testworld.Process {
		t.Helper()
		p := testworld.Start(t, "gateway", []string{"NATS_URL=" + w.inside}, bin, "gateway")
		w.said(p, "ready handoff.v1.*.>")
		return p
	}
	first := open()
	coder := []string{"NATS_URL=" + w.outside("coder"), "HANDOFF_AGENT=coder"}
	p := testworld.Start(t, "worker", coder, bin, "work", "--gateway", "--agent", "coder", "--env", "NATS_URL", "--", script) // with its password
	w.said(p, "worker ready")
	ticket := w.submit("coder", nil)
	w.appears(script + ".began")
	open()
	first.Kill()
	if err := os.WriteFile(script+".finish", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	state := w.until(ticket, brokertest.Closed)
	if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
		t.Fatalf("ended %s, %d attempts: %s", state.Outcome, state.AttemptsTotal, state.Message)
	}
	result, _, err := w.b.Result(w.ctx, ticket)
	if err != nil {
		t.Fatal(err)
	}
	child := w.status(strings.Trim(string(result.Body), `"`))
	if child.Source != "coder" || child.Parent != ticket {
		t.Errorf("submitted inside: from %s, parent %s", child.Source, child.Parent)
	}
	cmd := exec.CommandContext(w.ctx, bin, "status", "--gateway", ticket)
	cmd.Env = append(os.Environ(), "NATS_URL="+w.outside("spy"), "HANDOFF_AGENT=spy")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("a spy's look at it: %v, %s", err, out)
	}
}

// said waits until a process has said something, and appears until there is a file.
func (w *world) said(p *testworld.Process, what string) {
	w.Helper()
	w.eventually(p.Name+" says "+what, func() bool { return strings.Contains(p.Output(), what) })
}

func (w *world) appears(file string) {
	w.Helper()
	w.eventually(file, func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
}
