package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of the times in /proc, 1/100 s on every Linux that Go
// runs on (USER_HZ).
const clockTick = 10 * time.Millisecond

// cpuTime is processor time: of this process, of the servers with all that they
// started, and of the machine.
type cpuTime struct {
	own, server time.Duration
	machine
}

func usageNow(servers []int) (cpuTime, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return cpuTime{}, err
	}
	all, err := machineNow()
	if err != nil {
		return cpuTime{}, err
	}
	u := cpuTime{own: time.Duration(own.Utime.Nano() + own.Stime.Nano()), machine: all}
	if len(servers) == 0 {
		return u, nil
	}
	table, err := processes()
	if err != nil {
		return cpuTime{}, err
	}
	for _, pid := range servers {
		if _, runs := table[pid]; !runs {
			return cpuTime{}, fmt.Errorf("no process %d", pid)
		}
		u.server += table.withChildren(pid)
	}
	return u, nil
}

type process struct {
	parent int
	used   time.Duration // its own, and that of its children which have ended
}

type processTable map[int]process

func (t processTable) withChildren(pid int) time.Duration {
	used := t[pid].used
	for child, p := range t {
		if p.parent == pid {
			used += t.withChildren(child)
		}
	}
	return used
}

// machine is how the processors have spent their time, all together.
type machine struct {
	busy, idle, stolen time.Duration
}

// machineNow reads the first line of /proc/stat, see proc(5).
func machineNow() (machine, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machine{}, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return machine{}, fmt.Errorf("/proc/stat is not as proc(5) has it: %q", line)
	}
	var spent [8]time.Duration // user, nice, system, idle, iowait, irq, softirq, steal
	for i := range spent {
		ticks, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return machine{}, fmt.Errorf("/proc/stat: %w", err)
		}
		spent[i] = time.Duration(ticks) * clockTick
	}
	return machine{
		busy:   spent[0] + spent[1] + spent[2] + spent[5] + spent[6],
		idle:   spent[3] + spent[4],
		stolen: spent[7],
	}, nil
}

// processes reads all of /proc. A process that ends meanwhile is passed over:
// its parent has its time.
func processes() (processTable, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	table := processTable{}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		p, err := parseStat(stat)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		table[pid] = p
	}
	return table, nil
}

// parseStat reads a line of /proc/PID/stat, see proc(5). The name, in brackets,
// may hold spaces and brackets itself.
func parseStat(stat []byte) (process, error) {
	after := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[after+1:])) // fields[0] is the third of proc(5)
	if after < 0 || len(fields) < 15 {
		return process{}, fmt.Errorf("not as proc(5) has it: %q", stat)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, err
	}
	p := process{parent: parent}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return process{}, err
		}
		p.used += time.Duration(ticks) * clockTick
	}
	return p, nil
}

// versions are those of the libraries measured, as they were built in.
func versions() map[string]string {
	of := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return of
	}
	for _, dep := range info.Deps {
		switch dep.Path {
		case "github.com/hibiken/asynq", "github.com/redis/go-redis/v9",
			"github.com/riverqueue/river", "github.com/jackc/pgx/v5",
			"go.temporal.io/server", "go.temporal.io/sdk", "modernc.org/sqlite":
			of[dep.Path] = dep.Version
		}
	}
	return of
}
