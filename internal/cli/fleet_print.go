package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// settings prints each setting, and whether the fleet has it.
func (a *app) settings(fleet api.Fleet) error {
	tree, err := settingTree(fleet.Fleet)
	if err != nil {
		return err
	}
	rows := [][]string{{"SETTING", "VALUE", "SET"}}
	for _, path := range settingPaths() {
		set := settingRows(nil, path, settingAt(tree, path))
		if set == nil {
			set = [][]string{{path, settingDefaults[path], ""}}
			if path == "breaker.threshold" && fleet.Breaker == nil {
				set[0][1] = "none"
			}
		}
		rows = append(rows, set...)
	}
	return a.table(rows)
}

// settingAt returns the value of a setting; nil where the fleet has none.
func settingAt(tree map[string]any, path string) any {
	var value any = tree
	for part := range strings.SplitSeq(path, ".") {
		below, _ := value.(map[string]any)
		value = below[part]
	}
	return value
}

// settingRows adds the rows of one value, a row for each value below it.
func settingRows(rows [][]string, path string, value any) [][]string {
	switch value := value.(type) {
	case nil:
		return rows
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			rows = settingRows(rows, path+"."+name, value[name])
		}
		return rows
	case []any:
		text, _ := json.Marshal(value) // it came from JSON
		return append(rows, []string{path, string(text), "for all agents"})
	}
	return append(rows, []string{path, fmt.Sprint(value), "for all agents"})
}

// settingDefaults are the values that hold where the fleet sets none, by their names.
var settingDefaults = func() map[string]string {
	defaults := map[string]string{}
	for _, f := range protocol.PolicyFields {
		defaults["policy."+f.Name] = fmt.Sprint(f.Default)
	}
	breaker, err := settingTree(protocol.Fleet{})
	if text, failed := json.Marshal(protocol.DefaultBreaker()); failed == nil && err == nil {
		err = decodeNumbers(text, &breaker)
	}
	if err != nil {
		panic(err) // it is a struct of numbers
	}
	for name, value := range breaker {
		defaults["breaker."+name] = fmt.Sprint(value)
	}
	return defaults
}()

// settingWords completes the names of settings.
func settingWords(behind string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var words []string
		for _, path := range settingPaths() {
			words = append(words, path+behind)
		}
		return words, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}
