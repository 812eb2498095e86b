//go:build unix

package worker

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// group is the process group of a program: it, and what it started.
type group struct {
	id    int // its leader's process id
	guard *exec.Cmd
	alive io.Closer // closed by our death, too
}

// newGroup watches over the group of a program that was started with ownGroup.
func newGroup(leader *os.Process) *group {
	g := &group{id: leader.Pid}
	g.watch()
	return g
}

// guardScript waits for the end of its standard input, which is the worker's
// end, and kills the group. It is itself killed when it is not needed any more.
const guardScript = `read -r _; kill -s KILL -- "-$1"`

// watch starts the guard, in a session of its own so that no signal from the
// terminal and no end of the group reaches it. Where there is no sh there is none.
func (g *group) watch() {
	guard := exec.Command("/bin/sh", "-c", guardScript, "handoff-guard", strconv.Itoa(g.id))
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	guard.Dir, guard.Env = "/", []string{}
	alive, err := guard.StdinPipe()
	if err != nil {
		return
	}
	if guard.Start() != nil {
		_ = alive.Close()
		return
	}
	g.guard, g.alive = guard, alive
}

// close ends the guard, before its pipe: it must not find that closed.
func (g *group) close() {
	if g.guard == nil {
		return
	}
	_ = g.guard.Process.Kill()
	_ = g.guard.Wait() // closes the pipe
}

func (g *group) signalEnd() { _ = syscall.Kill(-g.id, syscall.SIGTERM) }
func (g *group) kill()      { _ = syscall.Kill(-g.id, syscall.SIGKILL) }

// restEvery is how often the rest of a group is looked at while it ends.
const restEvery = 20 * time.Millisecond

// endRest ends what is left of the group after its leader has ended.
func (g *group) endRest(grace time.Duration) {
	if syscall.Kill(-g.id, syscall.SIGTERM) != nil { // nobody left
		return
	}
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for end := time.Now().Add(grace); time.Now().Before(end); {
		<-tick.C
		if syscall.Kill(-g.id, 0) != nil {
			return
		}
	}
	g.kill()
}

// deathBy names the signal that ended a program.
func deathBy(state *os.ProcessState) string {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "signal_" + strconv.Itoa(int(status.Signal()))
	}
	return "exit_unknown"
}
