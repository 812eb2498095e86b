//go:build !unix

package worker

import (
	"os"
	"os/exec"
	"time"
)

// group is the program alone: this system has no process groups to end.
type group struct{ leader *os.Process }

func ownGroup(*exec.Cmd) {}

func newGroup(leader *os.Process) *group { return &group{leader} }

func (g *group) signalEnd()            { _ = g.leader.Kill() } // there is no TERM
func (g *group) kill()                 { _ = g.leader.Kill() }
func (g *group) endRest(time.Duration) {}
func (g *group) close()                {}

func deathBy(*os.ProcessState) string { return "exit_unknown" }
