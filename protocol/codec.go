package protocol

import "encoding/json"

// IsZero tells whether no artifacts were given, in either form.
func (a Artifacts) IsZero() bool { return a.List == nil && a.ByName == nil }

// MarshalJSON writes the form that was given. Should a program have set both,
// the names follow the list, so that nothing is lost.
func (a Artifacts) MarshalJSON() ([]byte, error) {
	_, form := a.form()
	return Marshal(form)
}

// form is which form is written, the list or the names, and a pointer to it.
func (a *Artifacts) form() (int, any) {
	if a.List == nil && a.ByName != nil {
		return 1, &a.ByName
	}
	all := a.All()
	return 0, &all
}

// UnmarshalJSON reads a list of artifacts, or a map from name to path. In a map null is
// something not made yet.
func (a *Artifacts) UnmarshalJSON(raw []byte) error {
	*a = Artifacts{}
	switch first(raw) {
	case 'n':
		return nil
	case '{':
		return json.Unmarshal(raw, &a.ByName)
	}
	return json.Unmarshal(raw, &a.List)
}

// FileReference, RequiredCapability and Capability are objects on the wire; a
// bare string stands for the field that names the thing.

// UnmarshalJSON reads an object, or a bare path.
func (f *FileReference) UnmarshalJSON(raw []byte) error {
	*f = FileReference{}
	if first(raw) == '"' {
		return json.Unmarshal(raw, &f.Path)
	}
	type plain FileReference
	return json.Unmarshal(raw, (*plain)(f))
}

// UnmarshalJSON reads an object, or a bare id.
func (c *RequiredCapability) UnmarshalJSON(raw []byte) error {
	*c = RequiredCapability{}
	if first(raw) == '"' {
		return json.Unmarshal(raw, &c.ID)
	}
	type plain RequiredCapability
	return json.Unmarshal(raw, (*plain)(c))
}

// UnmarshalJSON reads an object, or a bare id. Without a proficiency it is 1.
func (c *Capability) UnmarshalJSON(raw []byte) error {
	*c = Capability{Proficiency: 1}
	if first(raw) == '"' {
		return json.Unmarshal(raw, &c.ID)
	}
	type plain Capability
	return json.Unmarshal(raw, (*plain)(c))
}

// first is the first character that is no white space.
func first(raw []byte) byte {
	for _, c := range raw {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}
