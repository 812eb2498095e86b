package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// EnvLease has the lease of the program. In EnvAwaitDir "handoff submit --await block" leaves what the
// program's result waits for: packages, in files named 1, 2, ….
const (
	EnvLease    = "HANDOFF_LEASE"
	EnvAwaitDir = "HANDOFF_AWAIT_DIR"
)

// addAwaited adds what a program has left to what its result waits for, before that. A program that
// has run again, and left only what it has the ends of, has left nothing.
func addAwaited(result *protocol.Result, h Handoff, dir string) error {
	var list []json.RawMessage
	for n := 1; n <= protocol.AwaitMax; n++ {
		entry, err := readEntry(filepath.Join(dir, strconv.Itoa(n)))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s/%d: %w", EnvAwaitDir, n, err)
		}
		list = append(list, entry)
	}
	if len(list) == 0 || !result.Awaits() && hasEndsOf(h, list) {
		return nil
	}
	command := protocol.Command{}
	if result.Command != nil {
		command = *result.Command
	}
	if result.Awaits() {
		var said []json.RawMessage
		if err := json.Unmarshal(command.Await, &said); err != nil {
			return fmt.Errorf("command.await: %w", err)
		}
		list = append(list, said...)
	}
	all, err := json.Marshal(list)
	command.Await = all
	result.Command = &command
	return err
}

// hasEndsOf reports whether the program was given the ends of all these.
func hasEndsOf(h Handoff, list []json.RawMessage) bool {
	s := h.State()
	if s.Children == nil || s.Children.Received == "" {
		return false
	}
	all, err := json.Marshal(list)
	if err != nil {
		return false
	}
	packages, err := protocol.Await(h.Package, h.Agent, protocol.Result{Command: &protocol.Command{Await: all}})
	if err != nil {
		return false
	}
	var cells []string
	for _, pkg := range packages {
		key, err := protocol.ChildKeyOf(pkg)
		if err != nil {
			return false
		}
		n, cell, made := lifecycle.FindChild(s, key, cells...)
		if !made || !s.Children.Received.Has(n) {
			return false
		}
		cells = append(cells, cell)
	}
	return true
}

func readEntry(path string) (json.RawMessage, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, int64(protocol.PackageBytesMax)+1))
	switch {
	case err != nil:
		return nil, err
	case !json.Valid(body):
		return nil, errors.New("it is no JSON")
	}
	return body, nil
}
