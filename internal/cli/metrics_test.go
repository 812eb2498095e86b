package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestRunbooksNameCommands: whoever is woken by an alert and types what it says
// finds that command, and its flags.
func TestRunbooksNameCommands(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(&app{env: func(string) string { return "" }})
	runbook := regexp.MustCompile(`(?m)runbook: "(.*)"$`)
	command := regexp.MustCompile(`\bhandoff ([a-z]+(?: [a-z]+)*)((?: (?:--[a-z-]+|-- CMD|[A-Z]+|\{\{[^}]*\}\}|[a-z,]+))*)`)
	checked := 0
	for _, found := range runbook.FindAllStringSubmatch(string(text), -1) {
		for _, typed := range command.FindAllStringSubmatch(found[1], -1) {
			checked++
			cmd, _, err := root.Find(strings.Fields(typed[1]))
			if err != nil || cmd == root {
				t.Errorf("there is no command %q", typed[0])
				continue
			}
			for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(typed[2], -1) {
				if cmd.Flag(flag[1]) == nil {
					t.Errorf("%s has no flag --%s", cmd.CommandPath(), flag[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d commands are named", checked)
	}
}
