package protocol

import (
	"cmp"
	"maps"
	"slices"
)

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

// size is about how many bytes the artifacts are.
func (a Artifacts) size() (size int) {
	for _, a := range a.All() {
		size += len(a.ID) + len(a.Name) + len(a.Type) + len(a.Path) + len(a.CreatedBy) + len(a.Description)
	}
	return size
}

// With returns these artifacts and those of later, which came after them.
// Neither is changed.
//
// Two maps stay a map: a path of later replaces an earlier one of the same name,
// a null (not made yet) replaces none. Where either is a list the whole is one;
// the entries of a map are then artifacts with a name and perhaps a path, in the
// order of their names. An artifact of later that was there before takes its
// place, and fields that it leaves empty keep what they had; others follow
// behind. Whether two artifacts are one is told by the first of id, name and path
// that both have.
func (a Artifacts) With(later Artifacts) Artifacts {
	switch {
	case later.IsZero():
		return a
	case a.IsZero():
		return later
	case a.ByName != nil && later.ByName != nil:
		both := maps.Clone(a.ByName)
		for name, path := range later.ByName {
			if path != nil || both[name] == nil {
				both[name] = path
			}
		}
		return Artifacts{ByName: both}
	}
	nothing := func(a Artifact) bool { return len(a.handles()) == 0 } // of a map, with no name
	list := slices.DeleteFunc(slices.Clone(a.All()), nothing)
	known := map[string]int{} // the first artifact that has an id, a name, a path
	note := func(i int) {
		for _, handle := range list[i].handles() {
			if _, there := known[handle]; !there {
				known[handle] = i
			}
		}
	}
	for i := range list {
		note(i)
	}
	for _, artifact := range later.All() {
		if nothing(artifact) {
			continue
		}
		at := len(list)
		for _, handle := range artifact.handles() {
			if i, there := known[handle]; there && list[i].same(artifact) {
				at = i
				break
			}
		}
		if at == len(list) {
			list = append(list, artifact)
		} else {
			list[at] = list[at].with(artifact)
		}
		note(at)
	}
	return Artifacts{List: list}
}

// handles are what an artifact may be known by, the surest first.
func (a Artifact) handles() []string {
	var all []string
	for _, h := range []struct{ kind, value string }{{"id:", a.ID}, {"name:", a.Name}, {"path:", a.Path}} {
		if h.value != "" {
			all = append(all, h.kind+h.value)
		}
	}
	return all
}

// same tells whether two artifacts are one, by the first of id, name and path
// that both have.
func (a Artifact) same(b Artifact) bool {
	switch {
	case a.ID != "" && b.ID != "":
		return a.ID == b.ID
	case a.Name != "" && b.Name != "":
		return a.Name == b.Name
	}
	return a.Path != "" && a.Path == b.Path
}

// with is the artifact as later has it.
func (a Artifact) with(later Artifact) Artifact {
	created := later.CreatedAt
	if created.IsZero() {
		created = a.CreatedAt
	}
	return Artifact{ID: cmp.Or(later.ID, a.ID), Name: cmp.Or(later.Name, a.Name), Type: cmp.Or(later.Type, a.Type),
		Path: cmp.Or(later.Path, a.Path), Status: cmp.Or(later.Status, a.Status), CreatedBy: cmp.Or(later.CreatedBy, a.CreatedBy),
		CreatedAt: created, Description: cmp.Or(later.Description, a.Description)}
}
