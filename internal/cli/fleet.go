package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// changesMax is how often a change of the fleet's settings is tried that others overtake.
const changesMax = 10

func newFleet(a *app) *cobra.Command {
	show := onAll(a, (*api.Session).Fleet, a.settings)
	cmd := group(&cobra.Command{
		Use:   "fleet",
		Short: "Read and change the settings of all agents",
		Long: `Fleet prints the settings that hold for all agents, and changes them. The profile of
an agent (handoff agents put) wins over them, and a package (handoff submit) over both.

A change holds for offers from then on; processes that submit all the time have it
within 10 seconds. Handoffs that wait in a queue already keep their policy.`,
		Example: `  handoff fleet
  handoff fleet set policy.on_no_taker=queue
  handoff fleet unset policy.on_no_taker`,
	}, &cobra.Command{
		Use: "show", Short: "Print the settings, the defaults among them",
		Example: "  handoff fleet show\n  handoff fleet show -o json > fleet.json",
		Args:    takes(), RunE: show,
	}, newFleetSet(a), newFleetUnset(a), newFleetPut(a))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return refuseUnknown(cmd, args)
		}
		return show(cmd, args)
	}
	return cmd
}

func newFleetSet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME=VALUE...",
		Short: "Change settings by their names",
		Long: `Set changes the settings that are named, and no other. A name is the path of a field
of the settings, a value is JSON or a text. All of them are changed, or none. limits_by
may be written as limits under keys: KEY=8 (at a time), KEY=60/1m (begins in each span)
or KEY=8,60/1m, separated by spaces.`,
		Example: `  handoff fleet set policy.on_no_taker=queue policy.max_attempts=5
  handoff fleet set 'limits_by=model:$.variables.model=8,60/1m'`,
		Args: takesMore("NAME=VALUE"), ValidArgsFunction: settingWords("="),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			values, err := parseVariables("set", args)
			if err != nil {
				return err
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) { return withSettings(f, values) })
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

func newFleetUnset(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "unset NAME...",
		Short:   "Let the defaults hold again",
		Long:    `Unset removes settings. A name may be a whole subject, such as policy.`,
		Example: `  handoff fleet unset policy.on_no_taker`,
		Args:    takesMore("a NAME"), ValidArgsFunction: settingWords(""),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			unset := map[string]json.RawMessage{}
			for _, path := range args {
				unset[path] = nil
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) { return withSettings(f, unset) })
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

func newFleetPut(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "put FILE",
		Short: "Replace all settings by those of a file",
		Long: `Put replaces all settings by those of a JSON file, or of stdin with -. Where the file
has the revision that handoff fleet -o json prints, it replaces that revision only.`,
		Example: `  handoff fleet put fleet.json`,
		Args:    takes("a FILE"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			body, err := a.read(args[0])
			if err != nil {
				return err
			}
			var wanted api.Fleet
			if err := protocol.DecodeStrict(body, "fleet", protocol.FleetBytesMax, &wanted); err != nil {
				return err
			}
			if wanted.Revision != 0 {
				fleet, err := s.PutFleet(ctx, wanted)
				return a.changedFleet(ctx, s, fleet, err)
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) {
				return api.Fleet{Fleet: wanted.Fleet, Revision: f.Revision}, nil
			})
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

// changeFleet changes the settings of the fleet, again where another change came first.
func changeFleet(ctx context.Context, s *api.Session, change func(api.Fleet) (api.Fleet, error)) (api.Fleet, error) {
	for try := 1; ; try++ {
		fleet, err := s.Fleet(ctx)
		if err == nil {
			fleet, err = change(fleet)
		}
		if err != nil {
			return fleet, err
		}
		changed, err := s.PutFleet(ctx, fleet)
		if try == changesMax || !hasCode(protocol.CodeConflict)(err) {
			return changed, err
		}
	}
}

// The settings of the fleet have names: the paths of the fields of protocol.Fleet, in JSON. A new
// field has its name by itself.

// settingPaths returns the names of all fields that have a value of their own, in their order.
func settingPaths() []string { return pathsBelow("", reflect.TypeFor[protocol.Fleet]()) }

func pathsBelow(prefix string, t reflect.Type) (paths []string) {
	for i := range t.NumField() {
		name, of := settingField(t.Field(i))
		switch {
		case name == "":
		case hasSettings(of):
			paths = append(paths, pathsBelow(prefix+name+".", of)...)
		default:
			paths = append(paths, prefix+name)
		}
	}
	return paths
}

// settingField returns the name of a field, and its type without the pointer. Fields that the
// engine writes itself have no name.
func settingField(f reflect.StructField) (name string, of reflect.Type) {
	if name, _, _ = strings.Cut(f.Tag.Get("json"), ","); name == "updated_at" || name == "-" {
		name = ""
	}
	if of = f.Type; of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	return name, of
}

// hasSettings reports whether a type is a subject with settings below it.
func hasSettings(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// settingType returns the type of a setting, or of a whole subject.
func settingType(path string) (reflect.Type, *protocol.Error) {
	t := reflect.TypeFor[protocol.Fleet]()
	for part := range strings.SplitSeq(path, ".") {
		var found reflect.Type
		switch {
		case t.Kind() == reflect.Map:
			found = t.Elem()
		case hasSettings(t):
			for i := range t.NumField() {
				if name, of := settingField(t.Field(i)); name != "" && name == part {
					found = of
				}
			}
		}
		if found == nil || part == "" {
			return nil, protocol.Errorf(protocol.CodeUnknownField, path, "is no setting%s; handoff fleet has them all", didYouMean(path, settingPaths()))
		}
		if t = found; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t, nil
}

// withSettings returns settings with other values by their names; nil unsets one.
func withSettings(fleet api.Fleet, values map[string]json.RawMessage) (api.Fleet, error) {
	tree, err := settingTree(fleet.Fleet)
	if err != nil {
		return fleet, err
	}
	for _, path := range slices.Sorted(maps.Keys(values)) {
		t, unknown := settingType(path)
		if unknown != nil {
			return fleet, unknown
		}
		value := values[path]
		if t.Kind() == reflect.String && value != nil && value[0] != '"' { // a text that happens to be JSON
			value = jsonText(string(value))
		}
		if path == "limits_by" {
			if value, err = keyLimitsText(value); err != nil {
				return fleet, err
			}
		}
		var parsed any
		if value != nil {
			if err := decodeNumbers(value, &parsed); err != nil {
				return fleet, err
			}
		}
		putSetting(tree, strings.Split(path, "."), parsed)
	}
	text, err := json.Marshal(tree)
	if err == nil {
		fleet.Fleet, err = protocol.DecodeFleet(text)
	}
	return fleet, err
}

func settingTree(fleet protocol.Fleet) (tree map[string]any, err error) {
	text, err := json.Marshal(fleet)
	if err != nil {
		return nil, err
	}
	return tree, decodeNumbers(text, &tree)
}

// decodeNumbers reads JSON, and leaves numbers as they are written.
func decodeNumbers(text []byte, into any) error {
	reader := json.NewDecoder(bytes.NewReader(text))
	reader.UseNumber()
	return reader.Decode(into)
}

// putSetting sets one value of a tree, or removes it: nil. A subject without a value is removed
// too.
func putSetting(tree map[string]any, path []string, value any) {
	name := path[0]
	if len(path) > 1 {
		below, _ := tree[name].(map[string]any)
		if below == nil {
			below = map[string]any{}
		}
		putSetting(below, path[1:], value)
		if value = nil; len(below) > 0 {
			value = below
		}
	}
	if tree[name] = value; value == nil {
		delete(tree, name)
	}
}

// settings prints each setting, and whether the fleet has it.
func (a *app) settings(fleet api.Fleet) error {
	tree, err := settingTree(fleet.Fleet)
	if err != nil {
		return err
	}
	rows := [][]string{{"SETTING", "VALUE", "SET"}}
	for _, path := range settingPaths() {
		set := settingRows(nil, path, settingAt(tree, path))
		if path == "limits_by" && set != nil {
			set[0][1] = keyLimitWords(fleet.LimitsBy)
		}
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
	defaults["limits.share_percent"] = fmt.Sprint(protocol.SharePercentDefault)
	defaults["limits.on_exhausted"] = string(protocol.BudgetReturn)
	defaults["loops.edge_repeats"] = fmt.Sprint(protocol.EdgeRepeatsDefault)
	defaults["handoffs"] = string(protocol.HandoffsOn)
	defaults["routing.by"] = string(protocol.RouteByFit)
	for _, path := range settingPaths() { // bounds and rules without a default
		defaults[path] = cmp.Or(defaults[path], "none")
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

// changedFleet prints the settings, and warns on stderr of a rule for an agent that is not
// registered (yet): that is allowed, and may be a slip.
func (a *app) changedFleet(ctx context.Context, s *api.Session, fleet api.Fleet, err error) error {
	if err := printed(a, fleet, err, a.settings); err != nil {
		return err
	}
	for i, rule := range fleet.Approvals {
		for _, named := range []struct{ field, agent string }{{"by", rule.By}, {"if.source", rule.If.Source}, {"if.target", rule.If.Target}} {
			if err := a.warnUnknown(ctx, s, named.agent, "approvals[%d].%s: %s is no agent so far", i, named.field, named.agent); err != nil {
				return err
			}
		}
	}
	return nil
}
