package protocol

import "slices"

// All returns the artifacts of either form as a list; those of a map are named
// and sorted by name. One that is not made yet has no path.
func (a Artifacts) All() []Artifact {
	if a.ByName == nil {
		return a.List
	}
	list := slices.Clone(a.List)
	names := make([]string, 0, len(a.ByName))
	for name := range a.ByName {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		artifact := Artifact{Name: name}
		if path := a.ByName[name]; path != nil {
			artifact.Path = *path
		}
		list = append(list, artifact)
	}
	return list
}
