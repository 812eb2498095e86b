package testworld

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// How tests make clocks jump. A container has the clock of the machine, which a test must not
// set. libfaketime does not affect a static program, or one that reads the time from the vDSO. A
// time namespace moves the monotonic clock and the boot clock, not the wall clock. So the tests
// build programs with another time.Now, by go build -overlay, and leave the rest unchanged. That
// time.Now adds the seconds in a file of the directory $HANDOFF_TEST_CLOCK. The name of the file is
// $HANDOFF_TEST_CLOCK_NAME, or else that of the host. Timers follow the monotonic clock, as after
// an administrator sets a clock.

const (
	nowSource  = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowPatched = `
// SetSkew has Now answer so many seconds later than it is.
func SetSkew(seconds int64) { skew = seconds }

var skew int64

func Now() Time {
	sec, nsec, mono := runtimeNow()
	sec += skew
`
	skewFile = `package os

import "time"

func init() {
	dir := Getenv("HANDOFF_TEST_CLOCK")
	name := Getenv("HANDOFF_TEST_CLOCK_NAME")
	if name == "" {
		name, _ = Hostname()
	}
	if dir == "" {
		return
	}
	go func() {
		for ; ; time.Sleep(20 * time.Millisecond) {
			text, err := ReadFile(dir + "/" + name)
			seconds, sign := int64(0), int64(1)
			for _, c := range text {
				if c == '-' {
					sign = -1
				} else {
					seconds = 10*seconds + int64(c-'0')
				}
			}
			if err != nil {
				seconds = 0
			}
			time.SetSkew(sign * seconds)
		}
	}()
}
`
)

// ClockEnv and ClockName are the environment variables that name the clock file of a program.
const (
	ClockEnv  = "HANDOFF_TEST_CLOCK"
	ClockName = "HANDOFF_TEST_CLOCK_NAME"
)

// ClockOverlay returns an overlay for go build, with which programs read their clock file. It is
// empty, with the reason in the test's log, for an unknown version of Go.
func ClockOverlay(t testing.TB) (overlay string) {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, dir := strings.TrimSpace(string(out)), t.TempDir()
	source, err := os.ReadFile(filepath.Join(root, "src/time/time.go"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), nowSource) != 1 {
		t.Logf("skipped: clocks that jump: unknown time.Now in this version of Go")
		return ""
	}
	replace := map[string]string{}
	for original, text := range map[string]string{"src/time/time.go": strings.Replace(string(source), nowSource, nowPatched, 1), "src/os/skew_for_test_of_clocks.go": skewFile} {
		file := filepath.Join(dir, filepath.Base(original))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, original)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// SetClock makes a clock wrong by so many seconds; 0 makes it right again.
func SetClock(dir, name string, seconds int) error {
	path := filepath.Join(dir, name)
	if seconds == 0 {
		return os.Remove(path)
	}
	part := path + ".part"
	if err := os.WriteFile(part, []byte(strconv.Itoa(seconds)), 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
