//go:build unix

package worker

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// openAtOnce are the flags with which a file is opened that may be something else:
// without waiting for a writer, and not through a symbolic link.
const openAtOnce = syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// isOurs reports whether a file belongs to the user of this process.
func isOurs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// group is the process group of a program: a guard, which leads it, the program,
// and the processes that that starts.
type group struct {
	id    int       // 0 as long as it is empty
	guard *exec.Cmd // nil where there is no sh; then the program leads
}

// guardScript kills its own group when its standard input ends, which happens when the worker ends.
// It starts before the program, since the worker may be killed at any instant, and ignores the
// signals that end the other processes of the group.
const guardScript = `trap '' HUP INT QUIT TERM; read -r _; kill -s KILL 0`

// newGroup makes the group.
func newGroup() *group {
	guard := exec.Command("/bin/sh", "-c", guardScript)
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	guard.Dir, guard.Env = "/", []string{}
	alive, err := guard.StdinPipe() // closed by our death, too
	if err != nil {
		return &group{}
	}
	if guard.Start() != nil {
		_ = alive.Close()
		return &group{}
	}
	return &group{id: guard.Process.Pid, guard: guard}
}

// add makes a program that is not started yet a member.
func (g *group) add(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: g.id}
	dieWithUs(cmd.SysProcAttr)
}

// added is called once it is started.
func (g *group) added(program *os.Process) {
	if g.guard == nil {
		g.id = program.Pid
	}
}

// dismiss ends the guard alone. It is killed before its input ends, so that it
// kills no process.
func (g *group) dismiss() {
	if g.guard == nil {
		return
	}
	_ = g.guard.Process.Kill()
	_ = g.guard.Wait() // closes its input
	g.guard = nil
}

func (g *group) signalEnd() { _ = syscall.Kill(-g.id, syscall.SIGTERM) }
func (g *group) kill()      { _ = syscall.Kill(-g.id, syscall.SIGKILL) }

const (
	// restEvery is how often the rest of a group is looked at while it ends.
	restEvery = 20 * time.Millisecond
	// restSilent is the grace of a rest that has closed its output. It is dead as
	// a rule, and only not reaped yet: in a container without an init, never.
	restSilent = 100 * time.Millisecond
)

// endRest ends the rest of the group after the program has ended. silent is
// closed when no process holds the program's output open. Where the program ended by itself, a
// process that still holds it, such as a filter, has drainPipes to write the rest of the output.
func (g *group) endRest(grace time.Duration, silent <-chan struct{}, byItself bool) {
	if byItself {
		rest := time.NewTimer(drainPipes)
		defer rest.Stop()
		select {
		case <-silent:
		case <-rest.C:
		}
	}
	g.dismiss()                                      // with its guard the group never looks empty
	if syscall.Kill(-g.id, syscall.SIGTERM) != nil { // no process left
		return
	}
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for end := time.Now().Add(grace); time.Now().Before(end) && syscall.Kill(-g.id, 0) == nil; {
		select {
		case <-tick.C:
		case <-silent:
			silent = nil
			if soon := time.Now().Add(restSilent); soon.Before(end) {
				end = soon
			}
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
