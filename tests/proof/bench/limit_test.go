//go:build proof

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// quotaPeriod is the period of a quota in microseconds: short, so that a server that has used
// its share up stops for milliseconds, as a slower processor would have it.
const quotaPeriod = 10_000

// limit lets a process use a share of one processor, by a control group (version 1 or 2) of its
// own. throttled tells how often and how long it was stopped since. Where this process may make
// no such group, limit skips the test.
func limit(t *testing.T, p *process, share float64) (throttled func() string) {
	t.Helper()
	quota := strconv.Itoa(int(share * quotaPeriod))
	base, settings := "/sys/fs/cgroup/cpu", map[string]string{"cpu.cfs_period_us": strconv.Itoa(quotaPeriod), "cpu.cfs_quota_us": quota}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		base, settings = "/sys/fs/cgroup", map[string]string{"cpu.max": quota + " " + strconv.Itoa(quotaPeriod)}
	}
	group := filepath.Join(base, fmt.Sprintf("handoff-bench-%d", p.cmd.Process.Pid))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no control group limits a server here: %v", err)
	}
	t.Cleanup(func() {
		p.stop()
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max"} {
		if value, ok := settings[name]; ok {
			write(t, filepath.Join(group, name), value)
		}
	}
	write(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(p.cmd.Process.Pid))
	return func() string {
		stat, err := os.ReadFile(filepath.Join(group, "cpu.stat"))
		if err != nil {
			return err.Error()
		}
		return strings.Join(strings.Fields(string(stat)), " ")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Skipf("no control group limits a server here: %v", err)
	}
}
