package cli

import (
	"cmp"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// resultFlags are the flags that make a result.
type resultFlags struct {
	file, text, body, summary, notes string
	artifacts, variables             []string
	partial                          bool
	usage                            usageFlags
}

// resultFlagNames are the flags that say something of the result.
var resultFlagNames = []string{"file", "text", "body", "summary", "notes", "artifact", "var", "partial", "tokens", "cost"}

// declare declares the flags; partial is one where a result may be whole.
func (f *resultFlags) declare(fs *pflag.FlagSet, partial bool) {
	fs.StringVarP(&f.file, "file", "f", "", "read the result object from a JSON file, or stdin with -")
	fs.StringVar(&f.text, "text", "", "the body as text, or stdin with -")
	fs.StringVar(&f.body, "body", "", "the body as JSON, or stdin with -")
	fs.StringVar(&f.summary, "summary", "", "the result in a sentence")
	fs.StringVar(&f.notes, "notes", "", "anything for the agent that goes on")
	fs.StringArrayVar(&f.artifacts, "artifact", nil, "artifact `NAME=PATH`, or a URI as the path (repeatable)")
	fs.StringArrayVar(&f.variables, "var", nil, "changed variable `NAME=VALUE` (repeatable)")
	f.usage.declare(fs)
	if partial {
		fs.BoolVar(&f.partial, "partial", false, "only part of it is done")
	}
}

func (f *resultFlags) build(a *app) (protocol.Result, error) {
	if f.file != "" && f.text != "" || f.file != "" && f.body != "" || f.text != "" && f.body != "" {
		return protocol.Result{}, usagef("the body comes from one of -f, --text and --body")
	}
	result, err := f.read(a)
	if err != nil {
		return result, err
	}
	result.Summary = cmp.Or(f.summary, result.Summary)
	result.Notes = cmp.Or(f.notes, result.Notes)
	result.Usage = f.usage.over(result.Usage)
	if f.partial {
		result.Status = protocol.Partial
	}
	if err := addVariables(&result.Variables, "--var", f.variables); err != nil {
		return result, err
	}
	return result, addArtifacts(&result.Artifacts, f.artifacts)
}

// read makes the part of the result that comes from one of -f, --text and --body.
func (f *resultFlags) read(a *app) (protocol.Result, error) {
	switch {
	case f.file != "":
		raw, err := a.read(f.file)
		if err != nil {
			return protocol.Result{}, err
		}
		return protocol.DecodeResult(raw)
	case f.text == "-":
		raw, err := a.read("-")
		if err != nil {
			return protocol.Result{}, err
		}
		return textBody(string(raw))
	case f.text != "":
		return textBody(f.text)
	case f.body == "-":
		raw, err := a.read("-")
		if err != nil {
			return protocol.Result{}, err
		}
		return jsonBody(raw)
	case f.body != "":
		return jsonBody([]byte(f.body))
	}
	return protocol.Result{}, nil
}

// textBody refuses what the wire cannot carry: replaced, it would not be what
// was handed in, and sent, it would be a failed attempt.
func textBody(text string) (protocol.Result, error) {
	switch {
	case strings.ContainsRune(text, 0):
		return protocol.Result{}, protocol.Errorf(protocol.CodeText, "body", "holds a NUL byte; add what is not text as an artifact")
	case !utf8.ValidString(text):
		return protocol.Result{}, protocol.Errorf(protocol.CodeText, "body", "holds bytes that are no UTF-8; add what is not text as an artifact")
	}
	return protocol.Result{Body: jsonText(text)}, nil
}

func jsonBody(raw []byte) (protocol.Result, error) {
	if !json.Valid(raw) {
		_, err := protocol.DecodeResult(raw) // which says where
		return protocol.Result{}, inField(err, "body", "; give text with --text")
	}
	return protocol.Result{Body: raw}, nil
}

// jsonString returns the text of a body that is a JSON string.
func jsonString(raw json.RawMessage) (string, bool) {
	var text string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return "", false
	}
	return text, true
}
