package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// awaits tells whether a submission is one that the result of a program of "handoff work" waits
// for: it is handed off as the program ends.
func (o *submitOptions) awaits(env func(string) string) bool {
	return o.await == protocol.WaitBlock && o.child.lease == "" && env(worker.EnvAwaitDir) != ""
}

func (a *app) runSubmitAwaited(ctx context.Context, o *submitOptions) error {
	if o.lines.of(o.file) {
		return usagef("--await block takes one package, and not a file of lines")
	}
	pkg, err := o.buildFor(ctx, a)
	if err != nil {
		return err
	}
	a.warnArtifacts(o.artifacts)
	return o.hint(a.submitAwaited(ctx, pkg))
}

// submitAwaited leaves a package for the worker that runs this program, and prints the ticket
// that it will have.
func (a *app) submitAwaited(ctx context.Context, pkg protocol.Package) error {
	agent, parent := a.env("HANDOFF_AGENT"), a.env("HANDOFF_TICKET")
	pkg.Source, pkg.Parent = "", ""
	entry, err := protocol.EncodePackage(pkg)
	if err != nil {
		return err
	}
	list, err := json.Marshal([]json.RawMessage{entry})
	if err != nil {
		return err
	}
	made, err := protocol.Await(protocol.Package{}, agent, protocol.Result{Command: &protocol.Command{Await: list}})
	if err != nil {
		return ofEntry(err)
	}
	key, err := protocol.ChildKeyOf(made[0])
	if err != nil {
		return err
	}
	made[0].Source, made[0].Parent = agent, parent
	if _, err := a.prepare(ctx, made[0]); err != nil { // the worker would refuse it
		return err
	}
	equal, err := leaveEntry(a.env(worker.EnvAwaitDir), entry)
	if err != nil {
		return err
	}
	if key.Given != "" {
		equal = 0
	}
	ticket := protocol.ChildTicket(parent, key.Cell(equal))
	if !a.text() {
		return a.value(struct {
			Ticket  string          `json:"ticket"`
			Package json.RawMessage `json:"package"`
		}{ticket, entry})
	}
	a.printf("%s\n", ticket)
	return nil
}

// ofEntry names a field as the package has it, and not the list that it is in.
func ofEntry(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	own := *e
	own.Field = strings.TrimPrefix(strings.TrimPrefix(own.Field, "command.await[0]"), ".")
	return &own
}

// leaveEntry writes a file under the first name that is free, whole, and returns how many equal ones
// there were before it.
func leaveEntry(dir string, entry []byte) (equal int, err error) {
	file, err := os.CreateTemp(dir, ".entry-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(entry)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	for n := range protocol.AwaitMax {
		name := filepath.Join(dir, strconv.Itoa(n+1))
		err := os.Link(file.Name(), name)
		if !errors.Is(err, os.ErrExist) {
			return equal, err
		}
		if other, err := os.ReadFile(name); err == nil && bytes.Equal(other, entry) {
			equal++
		}
	}
	return 0, protocol.Errorf(protocol.CodeTooLarge, "await", "a result waits for at most %d handoffs", protocol.AwaitMax)
}
