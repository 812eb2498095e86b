package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// resultFlags are the flags that make a result.
type resultFlags struct {
	file, text, body, summary, notes string
	artifacts, variables             []string
	partial                          bool
	tokens                           int64
}

func newComplete(a *app) *cobra.Command {
	var (
		flags  resultFlags
		result protocol.Result
	)
	cmd := a.leaseCommand("complete LEASE",
		"Hand in the result and close the handoff",
		`Complete closes the handoff with a result: an object from a file (-f; see "handoff
schema result"), a text (--text) or JSON (--body), and what else the flags say.
Something must be given; --text "" where there is nothing to say.

A result that breaks the package's output schema, or is too large, fails the
attempt instead (exit code 9), and the handoff is tried again while attempts remain.

A result whose LEASE is lost changes nothing any more (exit code 7), and is kept
beside the handoff all the same: "handoff result TICKET --late" shows it.`,
		`  handoff complete "$LEASE" -f result.json
  handoff complete "$LEASE" --text "looks good" --artifact report=report.md
  my-tool | handoff complete "$LEASE" --text -`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.Holder, lease string) (protocol.State, error) {
			return s.Complete(ctx, lease, result)
		})
	flags.declare(cmd.Flags(), true)
	// Read before the engine is asked for anything: a file that cannot be read
	// is no failed attempt.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		// A forgotten -f must not close the handoff with nothing: its result
		// could not be handed in any more.
		if !slices.ContainsFunc(resultFlagNames, cmd.Flags().Changed) {
			return usagef("complete needs a result: -f FILE, --text or --body (--text \"\" for an empty one)")
		}
		result, err = flags.build(a)
		return err
	}
	return cmd
}

// resultFlagNames are the flags that say something of the result.
var resultFlagNames = []string{"file", "text", "body", "summary", "notes", "artifact", "var", "partial", "tokens"}

// declare declares the flags; partial is one where a result may be whole.
func (f *resultFlags) declare(fs *pflag.FlagSet, partial bool) {
	fs.StringVarP(&f.file, "file", "f", "", "read the result object from a JSON file, or stdin with -")
	fs.StringVar(&f.text, "text", "", "the body as text, or stdin with -")
	fs.StringVar(&f.body, "body", "", "the body as JSON, or stdin with -")
	fs.StringVar(&f.summary, "summary", "", "the result in a sentence")
	fs.StringVar(&f.notes, "notes", "", "anything for the agent that goes on")
	fs.StringArrayVar(&f.artifacts, "artifact", nil, "artifact `NAME=PATH`, or a URI as the path (repeatable)")
	fs.StringArrayVar(&f.variables, "var", nil, "changed variable `NAME=VALUE` (repeatable)")
	fs.Int64Var(&f.tokens, "tokens", 0, "tokens used")
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
	result.Tokens = cmp.Or(f.tokens, result.Tokens)
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
