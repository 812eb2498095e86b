package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// DecodePackage reads a package and refuses what it cannot read whole: JSON
// that does not parse (CodeMalformed, with line and column), text that is no
// text (CodeText), a value of the wrong type (CodeInvalid, with its path), a
// unknown field (CodeUnknownField), a field given twice (CodeMalformed),
// another major version (CodeVersion), too many bytes or levels (CodeTooLarge).
//
// A package of a newer minor version may hold fields that this code does not
// know: at the top they are kept in Extra and written again, below they are
// ignored. Free data is kept as it came. Whether the package makes sense is
// for Validate.
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

// packageReader is a scanner and the package that it reads into. They are kept for
// the next use.
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

// judge judges a package in which the reader found something: it is broken, or of a
// newer version. Then what is new at the top goes into Extra.
func (r *packageReader) judge(body []byte) *Error {
	pkg := &r.into
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil || top == nil {
		return asError(r.Problem) // the package is no object
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

// checkVersion tells whether a version is a newer minor one of ours. None
// stands for ours.
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

// tidyPackage removes what JSON can say in two ways: null, and the lists and
// maps of the target and the context that are there but empty.
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

// decodeStrict reads anything but a package: no newer versions, every field known.
func decodeStrict(body []byte, what string, bytesMax, around int, sh *wirejson.Shape, into any) error {
	if len(body) > bytesMax {
		return tooLarge(what, len(body), bytesMax)
	}
	s := wirejson.NewReader(bytes.TrimPrefix(body, byteOrderMark))
	defer s.Free()
	s.Around = around
	s.Read(sh, into)
	return WireError(s.Strict())
}

// foreignShapes are the shapes of types of other packages, by type.
var foreignShapes sync.Map

// DecodeStrict reads JSON of at most bytesMax bytes into a struct of another Go package.
// It is as strict as DecodePackage: what is the name of the whole in messages. Its fields
// are texts, int, int64, uint64, float64, bool, instants, structs, lists and maps of these
// and json.RawMessage, which is any well-formed JSON.
func DecodeStrict(body []byte, what string, bytesMax int, into any) error {
	t := reflect.TypeOf(into).Elem()
	sh, ok := foreignShapes.Load(t)
	if !ok {
		sh, _ = foreignShapes.LoadOrStore(t, shapes.Of(t))
	}
	return decodeStrict(body, what, bytesMax, wirejson.RecordDepth, sh.(*wirejson.Shape), into)
}

// DecodeResult reads a result as strictly as DecodePackage reads a package.
func DecodeResult(body []byte) (Result, error) {
	var r Result
	if err := decodeStrict(body, "result", ResultBytesMax, 0, resultShape, &r); err != nil {
		return Result{}, err
	}
	return r, nil
}

// DecodeAck reads an acknowledgement as strictly as DecodePackage reads a package.
func DecodeAck(body []byte) (Ack, error) {
	var a Ack
	if err := decodeStrict(body, "ack", AckBytesMax, 0, ackShape, &a); err != nil {
		return Ack{}, err
	}
	return a, nil
}

// DecodeAnswer reads an answer as strictly as DecodePackage reads a package.
func DecodeAnswer(body []byte) (Answer, error) {
	var a Answer
	if err := decodeStrict(body, "answer", AnswerBytesMax, 0, answerShape, &a); err != nil {
		return Answer{}, err
	}
	return a, nil
}

// DecodeProfile reads a profile as strictly as DecodePackage reads a package.
func DecodeProfile(body []byte) (Profile, error) {
	var p Profile
	if err := decodeStrict(body, "profile", ProfileBytesMax, 0, profileShape, &p); err != nil {
		return Profile{}, err
	}
	return p, nil
}

// DecodeProgress reads a progress report as strictly as DecodePackage reads a package.
func DecodeProgress(body []byte) (Progress, error) {
	var p Progress
	if err := decodeStrict(body, "progress", ProgressBytesMax, 0, progressShape, &p); err != nil {
		return Progress{}, err
	}
	return p, nil
}

// UnmarshalJSON is DecodePackage, so that a package inside something else is
// read as strictly.
func (p *Package) UnmarshalJSON(raw []byte) error {
	pkg, err := DecodePackage(raw)
	if err != nil {
		return fmt.Errorf("package: %w", err)
	}
	*p = pkg
	return nil
}
