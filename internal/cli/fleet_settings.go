package cli

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

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

// settingField returns the name of a field, and its type without the pointer. What the engine
// writes itself has no name.
func settingField(f reflect.StructField) (name string, of reflect.Type) {
	if name, _, _ = strings.Cut(f.Tag.Get("json"), ","); name == "updated_at" || name == "-" {
		name = ""
	}
	if of = f.Type; of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	return name, of
}

// hasSettings tells whether a type is a subject with settings below it.
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
