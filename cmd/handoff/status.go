package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// stateView is a State for programs, in which outcome is always there to be
// tested, empty while the handoff is open.
type stateView struct {
	protocol.State
	Outcome protocol.Outcome `json:"outcome"`
}

func view(s protocol.State) stateView { return stateView{s, s.Outcome} }

func newStatus(a *app) *cobra.Command {
	var withPackage bool
	cmd := &cobra.Command{
		Use:     "status TICKET",
		Aliases: []string{"info"},
		Short:   "Show where a handoff stands, and what it waits for",
		Long: `Status shows where a handoff stands now: phase, agent, attempt, and what it is
waiting for. It asks the ledger's leader: right after submit, from anywhere, it
finds the ticket.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff status 5f0c…
  handoff status 5f0c… -o json | jq -r .phase
  handoff status 5f0c… --package`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				if withPackage {
					body, err := b.Package(ctx, ticket)
					if err != nil {
						return err
					}
					if !a.text() {
						return a.value(json.RawMessage(body))
					}
					return a.document(body)
				}
				state, err := b.Status(ctx, ticket)
				if err != nil {
					return err
				}
				if err := a.state(state); err != nil {
					return err
				}
				a.whyWaiting(ctx, b, state)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&withPackage, "package", false, "print what was handed over, as JSON, instead")
	return cmd
}

// onTicket does something short with a ticket and an engine.
func (a *app) onTicket(ctx context.Context, text string, do func(context.Context, *broker.Broker, string) error) error {
	ticket, err := protocol.ParseTicket(text)
	if err != nil {
		return err
	}
	return a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error { return do(ctx, b, ticket) })
}

// state prints a state in the format asked for.
func (a *app) state(s protocol.State) error {
	if !a.text() {
		return a.value(view(s))
	}
	a.printf("%s  %s\n", s.Ticket, a.phase(s))
	waiting := waitingFor(s)
	if s.Closed {
		waiting = ""
	}
	progress := ""
	if s.Progress != nil && !s.Closed {
		progress = strings.TrimSpace(fmt.Sprintf("%s%% %s", trimFloat(s.Progress.Percent), s.Progress.Message))
	}
	return a.fields(
		"waits for", waiting,
		"ended", endedText(s),
		"from", s.Source,
		"to", toText(s),
		"attempt", attemptText(s),
		"progress", progress,
		"last error", lastError(s),
		"priority", string(s.Priority),
		"parent", s.Parent,
		"workflow", s.WorkflowID,
		"conversation", s.ConversationID,
		"submitted", when(s.SubmittedAt),
		"deadline", openOnly(s, when(s.Deadline)),
		"stuck", s.StuckReason,
	)
}

// phaseWord is the phase with its dimensions: closed or not, escalated, asked to stop.
func phaseWord(s protocol.State) string {
	word := string(s.Phase)
	if s.Closed {
		return fmt.Sprintf("%s (%s)", word, s.Outcome)
	}
	if s.EscalationLevel > 0 {
		word += fmt.Sprintf(", escalated to level %d", s.EscalationLevel)
	}
	if s.CancelRequested {
		word += ", cancel requested"
	}
	return word
}

// waitingFor says in words what has to happen next. It reads the state alone.
func waitingFor(s protocol.State) string {
	switch {
	case s.Closed:
		return "nothing: it is closed"
	case s.CancelRequested && s.Held():
		return fmt.Sprintf("the worker of %s to stop", s.Agent)
	}
	switch s.Phase {
	case protocol.AwaitingApproval:
		return "an approval"
	case protocol.Pending:
		switch {
		case s.Held():
			return fmt.Sprintf("%s, who has claimed it, to acknowledge it", s.Agent)
		case s.Agent == protocol.Human:
			return "a person: handoff claim --agent human"
		}
		return fmt.Sprintf("%s to take it", s.Agent)
	case protocol.PhaseAccepted:
		return fmt.Sprintf("%s to begin", s.Agent)
	case protocol.Working:
		return fmt.Sprintf("%s to finish", s.Agent)
	case protocol.Conditional:
		if s.Conditions == nil {
			return fmt.Sprintf("%s, who takes it at %s", s.Agent, when(s.RetryAt))
		}
		return fmt.Sprintf("an answer to %s, who needs %s: handoff answer %s", s.Agent, needsText(*s.Conditions), s.Ticket)
	case protocol.Retrying:
		return fmt.Sprintf("the next attempt, at %s", when(s.RetryAt))
	}
	return "a supervisor to decide (handoff supervise; handoff dev has one)"
}

func needsText(c protocol.Conditions) string {
	var needs []string
	if len(c.NeedsContext) > 0 {
		needs = append(needs, "context ("+strings.Join(c.NeedsContext, "; ")+")")
	}
	if len(c.NeedsPermission) > 0 {
		needs = append(needs, "permission ("+strings.Join(c.NeedsPermission, "; ")+")")
	}
	return strings.Join(needs, " and ")
}

// ending says how a closed handoff ended, in a few words.
func ending(s protocol.State) string {
	if !s.Closed {
		return waitingFor(s)
	}
	text := string(s.Outcome)
	if s.Reason != "" && s.Reason != string(s.Outcome) {
		text += " (" + s.Reason + ")"
	}
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

func endedText(s protocol.State) string {
	if !s.Closed {
		return ""
	}
	return fmt.Sprintf("%s, %s after it was submitted", ending(s), shortDuration(s.ClosedAt.Sub(s.SubmittedAt)))
}

// toText names the agent, and the way to it where that is not what was asked for.
func toText(s protocol.State) string {
	asked := s.Target.String()
	if s.Target.Agent == s.Agent {
		return s.Agent
	}
	return fmt.Sprintf("%s (submitted to %s)", s.Agent, asked)
}

func attemptText(s protocol.State) string {
	if s.AttemptsTotal == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d", s.Attempt, s.Policy.MaxAttempts)
	if s.AttemptsTotal > s.Attempt {
		text += fmt.Sprintf(" at %s, %d in all", s.Agent, s.AttemptsTotal)
	}
	return text
}

func lastError(s protocol.State) string {
	if s.Closed || s.Message == "" {
		return ""
	}
	return s.Message
}

func openOnly(s protocol.State, text string) string {
	if s.Closed {
		return ""
	}
	return text
}

// when writes an instant as people compare it with logs and with the ledger: in UTC.
func when(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

func newWait(a *app) *cobra.Command {
	var (
		timeout time.Duration
		until   string
		cancel  bool
	)
	cmd := &cobra.Command{
		Use:   "wait TICKET",
		Short: "Wait until a handoff is closed, or accepted",
		Long: `Wait blocks until the handoff is closed (or accepted, with --until accepted), and
prints how it ended. Without --timeout it waits as long as that takes. Waiting
changes nothing, and any number may wait.

Exit codes: 0 closed with success (or accepted); 4 still open when the timeout
passed; 5 closed without success; 3 no such ticket.`,
		Example: `  handoff wait 5f0c…
  handoff wait 5f0c… --timeout 30s --until accepted
  handoff wait 5f0c… --timeout 10m --cancel-on-timeout`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready, ok := map[string]func(protocol.State) bool{"closed": broker.Closed, "accepted": broker.Acknowledged}[until]
			if !ok {
				return usagef("--until %s: wait until accepted or closed", until)
			}
			limit := time.Duration(-1)
			if cmd.Flags().Changed("timeout") {
				limit = timeout
			}
			ticket, err := protocol.ParseTicket(args[0])
			if err != nil {
				return err
			}
			return a.wait(cmd.Context(), ticket, limit, ready, cancel)
		},
	}
	durationVar(cmd.Flags(), &timeout, "timeout", 0, "stop waiting after this; 0s looks once (default: no limit)")
	cmd.Flags().StringVar(&until, "until", "closed", "accepted or closed")
	cmd.Flags().BoolVar(&cancel, "cancel-on-timeout", false, "ask for the handoff's end when the timeout passes")
	words(cmd, "until", "accepted", "closed")
	return cmd
}

func (a *app) wait(ctx context.Context, ticket string, limit time.Duration, ready func(protocol.State) bool, cancel bool) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	state, err := waitFor(ctx, b, ticket, limit, ready)
	if cancel && is[*openError](err) {
		if state, err = b.Cancel(ctx, ticket, a.me(), "not done when the wait for it timed out"); err == nil {
			err = failed(state)
		}
	}
	if state.Ticket == "" {
		return err
	}
	if !a.text() {
		return errors.Join(a.value(view(state)), err)
	}
	a.printf("%s  %s\n", state.Ticket, a.phase(state))
	return err
}

// waitFor waits up to limit (negative: without end) and says what the exit code
// shall say. What it returns as the state is the last one read, if any.
func waitFor(ctx context.Context, b *broker.Broker, ticket string, limit time.Duration, ready func(protocol.State) bool) (protocol.State, error) {
	switch {
	case limit == 0: // one look needs its time too
		state, err := b.Status(ctx, ticket)
		if err == nil && !ready(state) {
			err = &openError{state}
		}
		return finish(state, err)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	state, err := b.Wait(ctx, ticket, ready)
	if err != nil && context.Cause(ctx) == errWaited && state.Ticket != "" {
		err = &openError{state}
	}
	return finish(state, err)
}

// errWaited tells our own timeout from the engine's.
var errWaited = errors.New("the wait is over")

// finish turns what was waited for into an exit code: accepted is success
// enough for who waits for that, closed without success is none.
func finish(s protocol.State, err error) (protocol.State, error) {
	if err == nil && s.Closed {
		err = failed(s)
	}
	return s, err
}

func newResult(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "result TICKET",
		Short: "Print the result of a handoff",
		Long: `Result prints the body of the result: text as it is, JSON indented. With -o json it
prints the whole result: status, body, summary, artifacts, variables.

Exit codes: 0 there is a result; 4 the handoff is still open; 5 it closed without
success and has none; 3 no such ticket.`,
		Example: `  handoff result 5f0c… > report.md
  handoff result 5f0c… -o json | jq .artifacts`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				result, state, err := b.Result(ctx, ticket)
				if errors.Is(err, broker.ErrNotFound) && state.Ticket != "" {
					return failed(state)
				}
				if err != nil {
					return err
				}
				if !a.text() {
					return a.value(result)
				}
				return a.result(result)
			})
		},
	}
}

// result prints what a person wants of a result: its body, or else its summary.
// whyWaiting says for people what the ledger does not know: why nobody takes a
// handoff that anybody might wonder about.
func (a *app) whyWaiting(ctx context.Context, b *broker.Broker, s protocol.State) {
	if !a.text() || s.Closed || s.Phase != protocol.Pending || s.Held() || s.Agent == protocol.Human {
		return
	}
	directory, err := b.Directory(ctx)
	if err != nil { // the status stands without it
		return
	}
	profile, known := directory.Agent(s.Agent)
	live, _, _ := directory.Load(s.Agent)
	switch {
	case known && profile.Paused:
		a.notef("handoff: %s is paused: handoff agents resume %s\n", s.Agent, s.Agent)
	case live == 0:
		a.notef("handoff: no worker serves %s: handoff work --agent %s -- CMD\n", s.Agent, s.Agent)
	}
}

func (a *app) result(r protocol.Result) error {
	if text, ok := jsonString(r.Body); ok {
		return a.body([]byte(text))
	}
	if len(r.Body) > 0 && string(r.Body) != "null" {
		return a.document(r.Body)
	}
	return a.body([]byte(r.Summary))
}
