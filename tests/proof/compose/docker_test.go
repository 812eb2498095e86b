//go:build proof

package compose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// The docker compose that is built where there is none: the newest of major version 2.
const (
	composeModule  = "github.com/docker/compose/v2"
	composeVersion = "v2.40.3"
	// composeTimeout is how long that may take, on processors that others load.
	composeTimeout = 40 * time.Minute
)

// needsDocker skips where there is no engine, and says so.
func needsDocker(t *testing.T) {
	t.Helper()
	if testworld.Race {
		t.Skip("containers run without the race detector: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	version, err := output(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}")
	if err != nil {
		t.Skipf("needs a Docker engine: %v", err)
	}
	t.Logf("Docker engine %s", version)
	alone(t)
}

// output runs a command, and returns what it wrote to stdout; what it wrote to stderr
// is in the error.
func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, last(errs.String()+out.String(), 4000))
	}
	return strings.TrimSpace(out.String()), nil
}

func last(text string, most int) string {
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return text
}

// cacheDir is where what takes long to make is kept from one run to the next.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "handoff-tests")
	return dir, os.MkdirAll(dir, 0o755)
}

// alone waits until no other run of these tests is under way on this machine: both
// would make, and take away, images of the same names.
func alone(t *testing.T) {
	t.Helper()
	dir, err := cacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "compose.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	waiting := time.NewTicker(time.Second)
	defer waiting.Stop()
	for began := time.Now(); ; {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Since(began) > composeTimeout {
			t.Fatalf("another run of these tests does not end: %s: %v", lock.Name(), err)
		}
		select {
		case <-waiting.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// composeCommand is "docker compose", or what is built in its place: once, and kept.
var composeCommand = sync.OnceValues(func() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), composeTimeout)
	defer cancel()
	if version, err := output(ctx, nil, "docker", "compose", "version", "--short"); err == nil && !strings.HasPrefix(version, "1.") {
		return []string{"docker", "compose"}, nil
	}
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "docker-compose-"+composeVersion)
	if _, err := os.Stat(path); err == nil {
		return []string{path}, nil
	}
	fmt.Printf("docker compose is not here: building %s from its Go module, which takes some minutes, into %s\n", composeVersion, path)
	return []string{path}, buildCompose(ctx, path)
})

// TestComposeIsThere builds docker compose where there is none. It is a test of its own
// so that it can be done beforehand, while others wait.
func TestComposeIsThere(t *testing.T) {
	needsDocker(t)
	command, err := composeCommand()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(strings.Join(command, " "))
}

// buildCompose builds docker compose in the module that it is the main one of: "go
// install" refuses it for its exclude directives. What it needs never enters our go.mod.
// A build without optimizations takes a fifth less processor time.
func buildCompose(ctx context.Context, path string) error {
	building, err := os.MkdirTemp(filepath.Dir(path), "building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(building) }()
	run := func(dir string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, last(string(exit.Stderr), 2000))
		}
		return out, err
	}
	out, err := run(building, "mod", "download", "-json", composeModule+"@"+composeVersion)
	if err != nil {
		return fmt.Errorf("download docker compose: %w", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	built := filepath.Join(building, "docker-compose")
	if _, err := run(module.Dir, "build", "-gcflags", "all=-N -l", "-ldflags", "-s -w -X "+composeModule+"/internal.Version="+composeVersion, "-o", built, "./cmd"); err != nil {
		return fmt.Errorf("build docker compose: %w", err)
	}
	return os.Rename(built, path)
}
