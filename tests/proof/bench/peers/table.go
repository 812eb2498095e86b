package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// measured is as much of a result, of ours or of `handoff bench`, as the table shows.
type measured struct {
	PerSecond float64         `json:"per_second"`
	CPU       float64         `json:"cpu_us_per_handoff"`
	Latency   map[string]span `json:"latency_us"`
}

// row is what all rounds have measured of one system in one group.
type row struct {
	group, system string
	rounds        []measured
}

// median is that of one figure over all rounds; of an even number the lower of
// the two in the middle, which was at least measured.
func (r row) median(figure func(measured) float64) float64 {
	figures := r.sorted(figure)
	return figures[(len(figures)-1)/2]
}

func (r row) sorted(figure func(measured) float64) []float64 {
	figures := make([]float64, len(r.rounds))
	for i, m := range r.rounds {
		figures[i] = figure(m)
	}
	slices.Sort(figures)
	return figures
}

// perSecond is the figure that systems are compared by.
func perSecond(m measured) float64 { return m.PerSecond }

// printTable reads the files GROUP.SYSTEM.ROUND.json of a directory and prints a
// Markdown table for each group.
func printTable(w io.Writer, dir string) error {
	rows, err := readRows(dir)
	if err != nil {
		return err
	}
	group := ""
	var first row
	for _, r := range rows {
		if r.group != group {
			group, first = r.group, r
			fmt.Fprintf(w, "\n%s, medians of rounds: %d (latencies p50 / p99 in ms)\n\n", group, len(r.rounds))
			fmt.Fprintln(w, "| system | handoffs/s | least – most | "+first.system+" is | submit | submit → claim | submit → complete | CPU a handoff |")
			fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|---:|")
		}
		all := r.sorted(perSecond)
		fmt.Fprintf(w, "| %s | %.0f | %.0f – %.0f | %.2f× | %s | %s | %s | %.0f µs |\n",
			r.system, r.median(perSecond), all[0], all[len(all)-1],
			first.median(perSecond)/r.median(perSecond),
			r.latency("submit"), r.latency("submit_to_claim"), r.latency("submit_to_complete"),
			r.median(func(m measured) float64 { return m.CPU }))
	}
	return nil
}

func (r row) latency(name string) string {
	p50 := r.median(func(m measured) float64 { return m.Latency[name].P50 })
	p99 := r.median(func(m measured) float64 { return m.Latency[name].P99 })
	return fmt.Sprintf("%.2f / %.1f", p50/1e3, p99/1e3)
}

// readRows gives the groups in the order of their names, and in each of them
// Handoff first.
func readRows(dir string) ([]row, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, file := range files {
		parts := strings.Split(filepath.Base(file), ".")
		if len(parts) != 4 {
			continue
		}
		if _, err := strconv.Atoi(parts[2]); err != nil {
			continue
		}
		encoded, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var m measured
		if err := json.Unmarshal(encoded, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		at := slices.IndexFunc(rows, func(r row) bool { return r.group == parts[0] && r.system == parts[1] })
		if at < 0 {
			at = len(rows)
			rows = append(rows, row{group: parts[0], system: parts[1]})
		}
		rows[at].rounds = append(rows[at].rounds, m)
	}
	if len(rows) == 0 {
		return nil, errors.New("no measurement in " + dir)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.group, b.group), -cmp.Compare(rank(a), rank(b)), cmp.Compare(a.system, b.system))
	})
	return rows, nil
}

func rank(r row) int {
	if r.system == "handoff" {
		return 1
	}
	return 0
}
