package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newResult(a *app) *cobra.Command {
	var late, asReturn, withPackage, chain bool
	var wait string
	cmd := &cobra.Command{
		Use:   "result TICKET",
		Short: "Print the result of a handoff",
		Long:  resultHelp,
		Example: `  handoff result 5f0c… > report.md
  handoff result 5f0c… -o json | jq .artifacts
  handoff result 5f0c… --return | jq .context_updates
  handoff result 5f0c… --late
  handoff result 5f0c… --chain`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if late && asReturn {
				return usagef("--late and --return are two things; choose one")
			}
			if chain && (late || asReturn) {
				return usagef("--chain prints a result; --late and --return are of one handoff")
			}
			if withPackage && !asReturn {
				return usagef("--package goes with --return; alone it is: handoff status %s --package", args[0])
			}
			limit, err := waitLimit(wait)
			if err != nil {
				return err
			}
			if limit != nil && (late || asReturn) {
				return usagef("--wait prints a result; --late and --return do not go with it")
			}
			if err := a.throughGateway(cmd, "late", "package"); err != nil {
				return err
			}
			if limit != nil {
				return a.waitResult(cmd.Context(), args[0], chain, *limit)
			}
			return a.onSource(cmd.Context(), args[0], func(ctx context.Context, s *source, ticket string) error {
				switch {
				case late:
					return a.lateResults(ctx, s, ticket)
				case asReturn:
					return a.returnOf(ctx, s, ticket, withPackage)
				}
				return a.printResult(ctx, s, ticket, chain)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&wait, "wait", "", "wait for the end first, at most `DURATION`; it is written with =, as in --wait=30s")
	fs.Lookup("wait").NoOptDefVal = waitForever
	a.personFlag(cmd)
	a.gatewayFlag(cmd)
	chainFlag(cmd, &chain, "print the result of the last handoff of the chain")
	fs.BoolVar(&late, "late", false, "print the results of workers that were stopped, or had lost their lease")
	fs.BoolVar(&asReturn, "return", false, "print the return that the source gets")
	fs.BoolVar(&withPackage, "package", false, "with --return: print the package of the handoff, too")
	return cmd
}

// waitResult waits for the end of a handoff, or of its chain, and prints its result.
func (a *app) waitResult(ctx context.Context, text string, chain bool, limit time.Duration) error {
	ticket, err := a.throughTicket(ctx, text)
	if err != nil {
		return err
	}
	s, done, err := a.source(ctx, a.through, a.env("HANDOFF_AGENT"))
	if err != nil {
		return err
	}
	defer done()
	if last, err := waitFor(ctx, s, ticket, chain, limit, string(api.UntilClosed)); !last.Closed || err != nil && !is[*outcomeError](err) {
		return err
	}
	return a.ask(ctx, func(ctx context.Context) error { return a.printResult(ctx, s, ticket, chain) })
}

// printResult prints the result of a handoff, or of the last one of its chain.
func (a *app) printResult(ctx context.Context, s *source, ticket string, chain bool) error {
	result, state, err := s.result(ctx, ticket, chain)
	switch {
	case errors.Is(err, broker.ErrNotFound) && state.Aggregate != nil && s.b != nil:
		return a.groupResults(ctx, s.b, state)
	case errors.Is(err, broker.ErrNotFound) && state.Ticket != "":
		return failed(state)
	}
	if err = printed(a, result, err, a.result); err == nil && result.Malformed != "" {
		err = failed(state)
	} else if err == nil && a.text() {
		a.warn(state)
		a.noteChain(state, "result")
	}
	return err
}

// result prints a result for a person: its body, or else its summary.
func (a *app) result(r protocol.Result) error {
	if text, ok := jsonString(r.Body); ok {
		return a.body([]byte(text))
	}
	if len(r.Body) > 0 && string(r.Body) != "null" {
		return a.document(r.Body)
	}
	return a.body([]byte(r.Summary))
}

// heading separates several results, as head and tail do.
func (a *app) heading(words ...string) { a.printf("==> %s <==\n", explain.Join(words...)) }

func (a *app) groupResults(ctx context.Context, b *broker.Broker, state protocol.State) error {
	members, err := b.Members(ctx, state)
	if err != nil {
		return err
	}
	if !a.text() {
		return errors.Join(list(a, members), failed(state))
	}
	for i, m := range members {
		end := string(m.Outcome)
		if !m.Closed {
			end = "still open"
		}
		a.heading(fmt.Sprint(i+1), m.Agent, end, m.Ticket)
		if m.Result == nil {
			continue
		}
		if err := a.result(*m.Result); err != nil {
			return err
		}
	}
	return failed(state)
}

func (a *app) lateResults(ctx context.Context, s *source, ticket string) error {
	all, err := s.session.LateResults(ctx, ticket)
	err = printedList(a, all, err, func(all []broker.LateResult) error {
		for _, late := range all {
			a.heading(fmt.Sprintf("attempt %d", late.Attempt), explain.By(late.Holder), explain.Instant(late.At), late.Result.Malformed)
			if err := a.result(late.Result); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && len(all) == 0 {
		err = &noResultError{"no result of " + ticket + " came late"}
	}
	return err
}

// resultFlags are the flags that make a result.
type resultFlags struct {
	File      string   `flag:"file,f" doc:"read the result object from a JSON file, or stdin with -"`
	Text      string   `flag:"text" doc:"the body as text, or stdin with -"`
	Body      string   `flag:"body" doc:"the body as JSON, or stdin with -"`
	Summary   string   `flag:"summary" doc:"the result in a sentence"`
	Notes     string   `flag:"notes" doc:"anything for the agent that goes on"`
	Artifacts []string `flag:"artifact,,each" doc:"artifact {NAME=PATH}, or a URI as the path (repeatable)"`
	Variables []string `flag:"var,,each" doc:"changed variable {NAME=VALUE} (repeatable)"`
	partial   bool
	usage     usageFlags
}

// resultFlagNames are the flags about the result.
var resultFlagNames = []string{"file", "text", "body", "summary", "notes", "artifact", "var", "partial", "tokens", "cost"}

// declare declares the flags; partial is one where a result may be whole.
func (f *resultFlags) declare(fs *pflag.FlagSet, partial bool) {
	bind(fs, f)
	f.usage.declare(fs)
	if partial {
		fs.BoolVar(&f.partial, "partial", false, "only part of it is done")
	}
}

func (f *resultFlags) build(a *app) (protocol.Result, error) {
	if f.File != "" && f.Text != "" || f.File != "" && f.Body != "" || f.Text != "" && f.Body != "" {
		return protocol.Result{}, usagef("the body comes from one of -f, --text and --body")
	}
	result, err := f.read(a)
	if err != nil {
		return result, err
	}
	result.Summary = cmp.Or(f.Summary, result.Summary)
	result.Notes = cmp.Or(f.Notes, result.Notes)
	result.Usage = f.usage.over(result.Usage)
	if f.partial {
		result.Status = protocol.Partial
	}
	if err := addVariables(&result.Variables, "--var", f.Variables); err != nil {
		return result, err
	}
	return result, addArtifacts(&result.Artifacts, f.Artifacts)
}

// read makes the part of the result that comes from one of -f, --text and --body.
func (f *resultFlags) read(a *app) (protocol.Result, error) {
	switch {
	case f.File != "":
		return readAs(a, f.File, protocol.DecodeResult)
	case f.Text == "-":
		return readAs(a, "-", textBody)
	case f.Text != "":
		return textBody([]byte(f.Text))
	case f.Body == "-":
		return readAs(a, "-", jsonBody)
	case f.Body != "":
		return jsonBody([]byte(f.Body))
	}
	return protocol.Result{}, nil
}

// textBody refuses text that the wire cannot carry: replaced, it would not be the text submitted,
// and sent, it would be a failed attempt.
func textBody(raw []byte) (protocol.Result, error) {
	switch text := string(raw); {
	case strings.ContainsRune(text, 0):
		return protocol.Result{}, protocol.Errorf(protocol.CodeText, "body", "holds a NUL byte; add binary data as an artifact")
	case !utf8.ValidString(text):
		return protocol.Result{}, protocol.Errorf(protocol.CodeText, "body", "holds bytes that are no UTF-8; add binary data as an artifact")
	}
	return protocol.Result{Body: jsonText(string(raw))}, nil
}

func jsonBody(raw []byte) (protocol.Result, error) {
	if !json.Valid(raw) {
		_, err := protocol.DecodeResult(raw) // whose error has the position
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

// resultHelp is the text of result --help.
const resultHelp = `Result prints the body of the result: text as it is, JSON indented. With -o json it
prints the whole result: status, body, summary, artifacts, variables.

Of a handoff whose last output was a malformed result it prints that output, as it came,
and the exit code is 5; -o json has the fault in "malformed". A warning names parts of
an output that did not go into the result.

Of a group it prints the members' results, in the order of the recipients, each
under a heading; with -o json a list of agent, ticket, closed, status and result.

--late prints late results, of workers that had lost their lease by then, oldest first,
with -o json as a list. They change nothing, unless the handoff's policy has
late_result=use and no attempt is left.

--return prints the return: the end of a closed handoff as its source gets it, with
status, result, changed variables, artifacts, tokens, notes, why it was rolled back and
by whom, the digest of the package, and the trail of who refused, asked and failed. It
is always JSON. With --package it has the package, too.

` + chainHelp + `

` + gatewayHelp + `

--wait waits for the end first.

` + speakHelp + `

Exit codes: 0 there is a result; 4 the handoff is still open, or nothing came late
so far; 5 it closed without success and has none (a group: it has members' results,
and yet no success); 12 with --wait: only a person can help; 3 no such ticket.`

// returnOf prints a return, with the package that had been handed off if asked to.
func (a *app) returnOf(ctx context.Context, s *source, ticket string, withPackage bool) error {
	state, err := s.Status(ctx, ticket)
	switch {
	case err != nil:
		return err
	case !state.Closed:
		return &openError{state: state}
	case lifecycle.AwaitsChain(state):
		return openReturn(ctx, s, state)
	}
	ret, err := s.Return(ctx, ticket)
	if err != nil || !withPackage {
		return a.returned(ret, err)
	}
	body, err := s.session.Package(ctx, ticket)
	return a.returned(struct {
		protocol.Return
		Package json.RawMessage `json:"package"`
	}{ret, body}, err)
}

// returned prints a return as JSON, or returns the error of the return.
func (a *app) returned(ret any, err error) error {
	return printed(a, ret, err, func(ret any) error {
		body, err := encode(ret, true)
		if err != nil {
			return err
		}
		return a.body(body)
	})
}
