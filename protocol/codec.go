package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// IsZero reports whether no artifacts were given, in either form.
func (a Artifacts) IsZero() bool { return a.List == nil && a.ByName == nil }

// MarshalJSON writes the given form. If a program has set both, the names follow the list, so that
// nothing is lost.
func (a Artifacts) MarshalJSON() ([]byte, error) {
	_, form := a.form()
	return Marshal(form)
}

// form returns the index of the form to write, list or names, and a pointer to its value.
func (a *Artifacts) form() (int, any) {
	if a.List == nil && a.ByName != nil {
		return 1, &a.ByName
	}
	all := a.All()
	return 0, &all
}

// UnmarshalJSON reads a list of artifacts, or a map from name to path. In a map null is an artifact
// that does not exist yet.
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

// FileReference, RequiredCapability and Capability are objects on the wire. A bare string sets
// their name field.

// UnmarshalJSON reads an object, or a bare path.
func (f *FileReference) UnmarshalJSON(raw []byte) error {
	*f = FileReference{}
	type plain FileReference
	return unmarshalNamed(raw, &f.Path, (*plain)(f))
}

// UnmarshalJSON reads an object, or a bare id.
func (c *RequiredCapability) UnmarshalJSON(raw []byte) error {
	*c = RequiredCapability{}
	type plain RequiredCapability
	return unmarshalNamed(raw, &c.ID, (*plain)(c))
}

// UnmarshalJSON reads an object, or a bare id. Without a proficiency it is 1.
func (c *Capability) UnmarshalJSON(raw []byte) error {
	*c = Capability{Proficiency: 1}
	type plain Capability
	return unmarshalNamed(raw, &c.ID, (*plain)(c))
}

func unmarshalNamed(raw []byte, name *string, object any) error {
	if first(raw) == '"' {
		return json.Unmarshal(raw, name)
	}
	return json.Unmarshal(raw, object)
}

// first returns the first character other than white space.
func first(raw []byte) byte {
	for _, c := range raw {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return c
		}
	}
	return 0
}

// DecodePackage reads a package and refuses one that it cannot read completely: JSON that does not
// parse (CodeMalformed, with line and column), invalid text (CodeText), a value of the wrong type
// (CodeInvalid, with its path), an unknown field (CodeUnknownField), a repeated field
// (CodeMalformed), another major version (CodeVersion), too many bytes or levels (CodeTooLarge).
//
// A package of a newer minor version may have fields that this code does not know: at the top they
// are kept in Extra and written again, below they are ignored. Free data is kept unchanged.
// Validate checks the meaning of the package.
func DecodePackage(body []byte) (Package, error) {
	if len(body) > PackageBytesMax {
		return Package{}, tooLarge("package", len(body), PackageBytesMax)
	}
	r := packageReaders.Get().(*packageReader)
	defer r.free()
	pkg := &r.into
	body = bytes.TrimPrefix(body, byteOrderMark)
	r.Begin(body)
	if r.Read(packageShape, pkg); r.Err != nil {
		return Package{}, WireError(r.Err)
	}
	if r.Problem != nil || r.HasUnknown() {
		if err := r.judge(body); err != nil {
			return Package{}, err
		}
	} else if _, err := checkVersion(pkg.Version); err != nil {
		return Package{}, err.of(pkg)
	}
	tidyPackage(pkg)
	return *pkg, nil
}

// packageReader is a scanner and its target package, pooled for reuse.
type packageReader struct {
	wirejson.Reader
	into Package
}

var packageReaders = sync.Pool{New: func() any { return new(packageReader) }}

func (r *packageReader) free() {
	r.Reset()
	r.into = Package{}
	packageReaders.Put(r)
}

var byteOrderMark = []byte("\xEF\xBB\xBF") // some editors begin a file with it

// judge decides about a package in which the reader found a problem: it is broken, or of a newer
// version. Then new top-level fields go into Extra.
func (r *packageReader) judge(body []byte) *Error {
	pkg := &r.into
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil || top == nil {
		return asError(r.Problem) // not an object
	}
	if c := first(top["version"]); c != 0 && c != '"' && c != 'n' {
		return Errorf(CodeVersion, "version", "must be text such as %q", Version).of(pkg)
	}
	newer, err := checkVersion(pkg.Version)
	switch {
	case err != nil:
		return err.of(pkg)
	case newer && r.Problem != nil:
		return asError(r.Problem).of(pkg)
	case !newer:
		return asError(r.Strict()).of(pkg)
	}
	for name, value := range top {
		if packageShape.Field(name) == nil {
			if pkg.Extra == nil {
				pkg.Extra = map[string]json.RawMessage{}
			}
			pkg.Extra[name] = value
		}
	}
	return nil
}

// checkVersion reports whether a version is a newer minor one of ours. An empty version is ours.
func checkVersion(version string) (newer bool, err *Error) {
	if version == "" {
		return false, nil
	}
	major, minor, ok := parseVersion(version)
	if !ok {
		return false, Errorf(CodeVersion, "version", "%s is no version; write major.minor, such as %q", strconv.QuoteToASCII(wirejson.Clip(version)), Version)
	}
	ours, oursMinor, _ := parseVersion(Version)
	if major != ours {
		return false, Errorf(CodeVersion, "version", "%s is another major version; this program reads %d.x", version, ours)
	}
	return minor > oursMinor, nil
}

// parseVersion reads "major.minor" in plain decimal numbers.
func parseVersion(version string) (major, minor int, ok bool) {
	number := func(s string) (int, bool) {
		n, err := strconv.ParseUint(s, 10, 16)
		return int(n), err == nil && (s == "0" || s[0] != '0')
	}
	left, right, found := strings.Cut(version, ".")
	if !found {
		return 0, 0, false
	}
	major, okMajor := number(left)
	minor, okMinor := number(right)
	return major, minor, okMajor && okMinor
}

// tidyPackage removes alternative spellings of JSON: null, and empty lists and maps of the target
// and the context.
func tidyPackage(pkg *Package) {
	if string(pkg.Expectations.OutputSchema) == "null" {
		pkg.Expectations.OutputSchema = nil
	}
	dropEmpty(&pkg.Target.Agents)
	dropEmpty(&pkg.Expectations.SuccessCriteria)
	c := &pkg.Context
	dropEmpty(&c.CompletedSteps)
	dropEmpty(&c.RemainingSteps)
	dropEmpty(&c.KeyPoints)
	dropEmpty(&c.ConversationHistory)
	dropEmpty(&c.Decisions)
	dropEmpty(&c.RelevantFiles)
	dropEmpty(&c.FilesInProgress)
	dropEmpty(&c.Constraints)
	dropEmpty(&c.WhenStuck)
	for _, free := range []*map[string]json.RawMessage{&c.Variables, &c.IntermediateResults, &c.Metrics, &c.Metadata} {
		if len(*free) == 0 {
			*free = nil
		}
	}
}

func dropEmpty[E any](list *[]E) {
	if len(*list) == 0 {
		*list = nil
	}
}

func tooLarge(field string, size, most int) *Error {
	return Errorf(CodeTooLarge, field, "%s", OverSize(size, most))
}

// decodeStrict reads other types than a package: no newer versions, every field known.
func decodeStrict(body []byte, what string, bytesMax, around int, into any) error {
	if len(body) > bytesMax {
		return tooLarge(what, len(body), bytesMax)
	}
	s := wirejson.NewReader(bytes.TrimPrefix(body, byteOrderMark))
	defer s.Free()
	s.Around = around
	s.Read(ShapeOf(reflect.TypeOf(into).Elem()), into)
	return WireError(s.Strict())
}

func decode[T any](body []byte, what string, bytesMax int) (T, error) {
	var v T
	if err := decodeStrict(body, what, bytesMax, 0, &v); err != nil {
		return *new(T), err
	}
	return v, nil
}

// DecodeStrict reads JSON of at most bytesMax bytes into a struct of another Go package. It is as
// strict as DecodePackage; the argument what names the whole in messages. Fields may be texts, int,
// int64, uint64, float64, bool, instants, structs, lists and maps of these, and json.RawMessage,
// which is any well-formed JSON.
func DecodeStrict(body []byte, what string, bytesMax int, into any) error {
	return decodeStrict(body, what, bytesMax, wirejson.RecordDepth, into)
}

// DecodeResult reads a result as strictly as DecodePackage reads a package.
func DecodeResult(body []byte) (Result, error) { return decode[Result](body, "result", ResultBytesMax) }

// DecodeAck reads an acknowledgement as strictly as DecodePackage reads a package.
func DecodeAck(body []byte) (Ack, error) { return decode[Ack](body, "ack", AckBytesMax) }

// DecodeAnswer reads an answer as strictly as DecodePackage reads a package.
func DecodeAnswer(body []byte) (Answer, error) { return decode[Answer](body, "answer", answerBytesMax) }

// DecodeProfile reads a profile as strictly as DecodePackage reads a package.
func DecodeProfile(body []byte) (Profile, error) {
	return decode[Profile](body, "profile", profileBytesMax)
}

// DecodeProgress reads a progress report as strictly as DecodePackage reads a package.
func DecodeProgress(body []byte) (Progress, error) {
	return decode[Progress](body, "progress", ProgressBytesMax)
}

// UnmarshalJSON is DecodePackage, so that a nested package is read as strictly.
func (p *Package) UnmarshalJSON(raw []byte) error {
	pkg, err := DecodePackage(raw)
	if err != nil {
		return fmt.Errorf("package: %w", err)
	}
	*p = pkg
	return nil
}

// Marshal writes JSON of any kind like Go's own encoder, but without escaping <, > and &: bodies
// are for programs and people, not for HTML.
func Marshal(v any) ([]byte, error) { return wirejson.Marshal(v) }

// packageWriter is a writer and its package. Reflection needs the package on the heap; pooling
// avoids a new allocation each time.
type packageWriter struct {
	wirejson.Writer
	pkg Package
}

var packageWriters = sync.Pool{New: func() any { return new(packageWriter) }}

// EncodePackage writes a package as it is stored and handed off: compact, without escaping <, > and
// &, with the fields of Extra after the known ones. Free data that is not JSON is a *protocol.Error
// with CodeMalformed.
func EncodePackage(p Package) (json.RawMessage, error) {
	w := packageWriters.Get().(*packageWriter)
	defer packageWriters.Put(w)
	defer w.Reset()
	w.pkg = p
	err := w.Object(packageShape, &w.pkg)
	w.pkg = Package{}
	if err == nil && len(p.Extra) > 0 {
		w.Reopen()
		err = writeExtra(&w.Writer, p.Extra)
		w.Raw("}")
	}
	if err != nil {
		return nil, WireError(err.Below("package"))
	}
	return w.Written(), nil
}

// writeExtra writes the fields of a newer version after ours.
func writeExtra(w *wirejson.Writer, extra map[string]json.RawMessage) *wirejson.Error {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if packageShape.Field(name) != nil { // already written
			continue
		}
		w.Raw(",")
		w.Text(name)
		w.Raw(":")
		if err := w.FreeData(extra[name]); err != nil {
			return err.Below(name)
		}
	}
	return nil
}

// MarshalJSON is EncodePackage, so that a nested package keeps its Extra.
func (p Package) MarshalJSON() ([]byte, error) { return EncodePackage(p) }

// EncodeResult writes a result as it is stored.
func EncodeResult(r Result) (json.RawMessage, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	if err := w.Object(resultShape, &r); err != nil {
		return nil, WireError(err.Below("result"))
	}
	return w.Written(), nil
}
