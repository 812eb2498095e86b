package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// orRun is --or-run: the command that does the work where a package cannot be handed off.
type orRun struct {
	given   bool
	command []string
	// pkg is the package, once it is known to be in order; placed says that it is handed off, or
	// may be.
	pkg    json.RawMessage
	placed bool
}

// ranError is how the command of --or-run has ended, with its exit code.
type ranError struct{ code int }

func (e *ranError) Error() string { return "the command of --or-run has ended without success" }

// unknownError says that it is not known whether something was submitted.
type unknownError struct{ error }

func (e *unknownError) Unwrap() error { return e.error }

// check reads the command behind --, and refuses what does not go with it.
func (r *orRun) check(cmd *cobra.Command, args []string, dir string) error {
	if !r.given {
		return nil
	}
	if len(args) == 0 {
		return usagef("--or-run needs a command: handoff submit … --or-run -- CMD")
	}
	for _, flag := range []string{"dry-run", "lines", "keep-going"} {
		if cmd.Flags().Changed(flag) {
			return usagef("--%s does not go with --or-run", flag)
		}
	}
	r.command = args
	return inField(worker.CheckCommand(dir, args), "or_run", "")
}

// keep remembers a package that is in order. Without a target, none was found.
func (r *orRun) keep(ctx context.Context, a *app, pkg protocol.Package) error {
	if !r.given {
		return nil
	}
	target := pkg.Target
	if target.Agent == "" && target.Capability == "" && pkg.GroupSize() == 0 && pkg.Type != protocol.Escalation {
		pkg.Target.Capability = "unknown" // what else it says is checked, and cleared of secrets
	}
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return err
	}
	stored, err := protocol.DecodePackage(prepared.Body)
	if err != nil {
		return err
	}
	stored.Target = target
	r.pkg, err = protocol.EncodePackage(stored)
	return err
}

// takes tells whether the command does the work instead: the package was refused, or the engine
// was not reached, and nothing is handed off for certain.
func (r *orRun) takes(err error) bool {
	if !r.given || r.placed || r.pkg == nil || err == nil || is[*unknownError](err) {
		return false
	}
	code := exitFor(err).code
	return code == exitRefused || code == exitUnreachable
}

// instead runs the command with the package on its standard input.
func (r *orRun) instead(ctx context.Context, a *app, why error) error {
	a.notef("handoff: not handed off, %s does it: %s\n", r.command[0], protocol.Printable(why.Error()))
	cmd := exec.CommandContext(ctx, r.command[0], r.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.dir, bytes.NewReader(r.pkg), a.out, a.err
	cmd.Env = append(os.Environ(), a.connEnv("")...)
	err := cmd.Run()
	var ended *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &ended) && ended.ExitCode() > 0 {
		return &ranError{ended.ExitCode()}
	}
	return err
}
