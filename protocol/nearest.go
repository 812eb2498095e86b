package protocol

import (
	"cmp"
	"slices"
	"strings"
)

const (
	// editsMax is how many edits make one name of another: a slip or two.
	editsMax = 2
	// nearestMax is how many names Nearest returns.
	nearestMax = 3
)

// Nearest returns the known names that may be meant by a name which is none of them, the nearest
// first.
func Nearest(name string, known []string) []string {
	type candidate struct {
		name  string
		edits int
	}
	var near []candidate
	for _, k := range known {
		most := min(editsMax, len(k)/2)
		if n := edits(name, k); n <= most || len(name) > editsMax && strings.HasPrefix(k, name) {
			near = append(near, candidate{k, n})
		}
	}
	slices.SortFunc(near, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.edits, y.edits), strings.Compare(x.name, y.name))
	})
	var names []string
	for _, c := range near[:min(len(near), nearestMax)] {
		names = append(names, c.name)
	}
	return names
}

// edits counts the letters to insert, leave out, change or swap with the next to make b of a.
func edits(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range y {
		rows[0][j+1] = j + 1
	}
	for i := range x {
		for j := range y {
			change := 1
			if x[i] == y[j] {
				change = 0
			}
			rows[i+1][j+1] = min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+change)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				rows[i+1][j+1] = min(rows[i+1][j+1], rows[i-1][j-1]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
