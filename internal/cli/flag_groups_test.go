package cli

import (
	"slices"
	"strings"
	"testing"
)

// TestFlagGroups: each heading of a help has the flag that it begins with.
func TestFlagGroups(t *testing.T) {
	root := newRoot(&app{env: func(string) string { return "" }})
	for path, groups := range flagGroups {
		cmd, _, err := root.Find(strings.Fields(path)[1:])
		if err != nil || cmd.CommandPath() != path {
			t.Errorf("%s is no command: %v", path, err)
			continue
		}
		var titles []string
		for title := range flagsByGroup(cmd) {
			titles = append(titles, title)
		}
		for _, group := range groups {
			if cmd.LocalFlags().Lookup(group.first) == nil || !slices.Contains(titles, group.title) {
				t.Errorf("%s: %s begins with --%s, which it does not have", path, group.title, group.first)
			}
		}
	}
}
