//go:build !unix

package worker

import (
	"os"
	"os/exec"
	"time"
)

const openAtOnce = 0 // files cannot be pipes here

func isOurs(os.FileInfo) bool { return true } // another user's cannot be opened

// group is the program alone: this system has no process groups to end.
type group struct{ program *os.Process }

func newGroup() *group { return &group{} }

func (g *group) add(*exec.Cmd)             {}
func (g *group) added(program *os.Process) { g.program = program }

func (g *group) signalEnd()                                   { _ = g.program.Kill() } // there is no TERM
func (g *group) kill()                                        { _ = g.program.Kill() }
func (g *group) endRest(time.Duration, <-chan struct{}, bool) {}
func (g *group) dismiss()                                     {}

func deathBy(*os.ProcessState) string { return "exit_unknown" }
