package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Variables by which "handoff submit --await block" in a program leaves what its result waits
// for: a directory of packages in files named 1, 2, …, and the ordinal of the first of them.
const (
	EnvLease    = "HANDOFF_LEASE"
	EnvAwaitDir = "HANDOFF_AWAIT_DIR"
	EnvChildren = "HANDOFF_CHILDREN"
)

// awaitEnvironment makes the directory, and says which ordinals its entries will have.
func awaitEnvironment(h Handoff, dir string) ([]string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	first := broker.RoomForResult(h.State().Children)
	return []string{EnvAwaitDir + "=" + dir, EnvChildren + "=" + strconv.Itoa(first)}, nil
}

// addAwaited adds what a program has left to what its result waits for, before that.
func addAwaited(result *protocol.Result, dir string) error {
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
	if len(list) == 0 {
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
