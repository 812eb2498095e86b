package mcpgateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Leases of models, which think for minutes and have no process that beats.
const (
	leaseMinutesDefault = 15
	leaseMinutesMin     = 10
	leaseMinutesMax     = 30
)

type nextIn struct {
	Agent        string `json:"agent,omitempty" max:"128" jsonschema:"the agent whose work you do; needed if your token has several"`
	WaitMS       int    `json:"wait_ms,omitempty" min:"0" max:"20000" jsonschema:"milliseconds to wait for work"`
	LeaseMinutes int    `json:"lease_minutes,omitempty" min:"10" max:"30" jsonschema:"how long it stays yours without a call about it; default 15"`
}

// next claims an offer, or makes a task that waits for one. While the client does not ask for the task, nothing
// is claimed and nothing is kept.
func (c *caller) next(ctx context.Context, in nextIn) (answer, error) {
	agents := strings.Join(c.who.Agents, ", ")
	if in.Agent == "" && len(c.who.Agents) != 1 {
		return answer{}, protocol.Errorf(protocol.CodeMissing, "agent", "is missing: name the agent whose work you do; your token works as %s", cmp.Or(agents, "any"))
	}
	id := waitID{cmp.Or(in.Agent, agents), uuid.NewString(), cmp.Or(in.LeaseMinutes, leaseMinutesDefault)}
	if c.tasks {
		return answer{task: id.task()}, nil
	}
	a, err := c.claim(ctx, id, in.WaitMS)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNothingToClaim}) {
		text := fmt.Sprintf("No work for %s now. Call again later, with wait_ms to wait up to 20 s; do not call in a loop.", id.Agent)
		return answer{text: text, data: map[string]any{"claimed": false}}, nil
	}
	return a, err
}

// taken is the structured content of a handoff that was taken.
type taken struct {
	Claimed bool            `json:"claimed"`
	Lease   string          `json:"lease"`
	Ticket  string          `json:"ticket"`
	Agent   string          `json:"agent"`
	Package json.RawMessage `json:"package"`
}

// claim takes an offer, or the one that an earlier call with the same id took.
func (c *caller) claim(ctx context.Context, id waitID, waitMS int) (answer, error) {
	lease := time.Duration(id.Minutes) * time.Minute
	h, err := c.Claim(ctx, api.Claim{Agent: id.Agent, Key: id.Key, Wait: time.Duration(waitMS) * time.Millisecond, Lease: lease, AckWithin: lease, Host: "mcp"})
	if err != nil {
		return answer{}, err
	}
	document, err := h.Instructions()
	text := fmt.Sprintf(`You work as %s on ticket %s, for %d minutes after each call about it.
lease: %s

Next: respond with this lease, decision accept; then do the work, report now and then, and finish. If it is not for you, respond with reject and the reason.

%s`, h.Agent, h.State.Ticket, id.Minutes, h.Lease, document)
	return answer{text: text, data: taken{true, h.Lease, h.State.Ticket, h.Agent, h.Package}}, err
}

type respondIn struct {
	Lease      string   `json:"lease" max:"1024" jsonschema:"the lease of next_handoff"`
	Decision   string   `json:"decision" enum:"accept,reject,need_context,need_permission,later,escalate" jsonschema:"your decision"`
	Reason     string   `json:"reason,omitempty" max:"2048" jsonschema:"why; needed for reject, later and escalate"`
	Needs      []string `json:"needs,omitempty" max:"16" jsonschema:"of need_context: the questions; of need_permission: the permissions"`
	Suggest    string   `json:"suggest,omitempty" max:"128" jsonschema:"of reject: the agent that fits better"`
	RetryAfter int      `json:"retry_after_seconds,omitempty" min:"1" max:"86400" jsonschema:"of later: when to offer it again"`
}

func (c *caller) respond(ctx context.Context, in respondIn) (answer, error) {
	ack := protocol.Ack{Status: protocol.AckConditional, Reason: in.Reason}
	done := "Your question is asked; the handoff comes back to the agent with the answer. You are free."
	switch in.Decision {
	case "accept":
		ack, done = protocol.Ack{Status: protocol.AckAccepted}, "Accepted: do the work now, report progress, and end it with finish."
	case "reject":
		ack.Status, ack.SuggestedAlternative, done = protocol.AckRejected, in.Suggest, "Refused: it goes to another agent. You are free."
	case "need_context":
		ack.NeedsContext = in.Needs
	case "need_permission":
		ack.NeedsPermission = in.Needs
	case "later":
		ack.RetryAfterMS, done = int64(max(in.RetryAfter, 1))*1000, "Put off: it is offered again later. You are free."
	case "escalate":
		state, err := c.Escalate(ctx, in.Lease, in.Reason, "")
		return reported("Escalated: the authority above you decides. You are free.", state, err)
	}
	if strings.HasPrefix(in.Decision, "need_") && len(in.Needs) == 0 {
		return answer{}, protocol.Errorf(protocol.CodeMissing, "needs", "is missing: list your questions, or the permissions")
	}
	state, err := c.Acknowledge(ctx, in.Lease, ack)
	return reported(done, state, err)
}

// reported answers a report of a worker, with the handoff behind it.
func reported(text string, state protocol.State, err error) (answer, error) {
	return answer{text: text, data: viewOf(state.Ticket, state)}, err
}

type reportIn struct {
	Lease   string  `json:"lease" max:"1024" jsonschema:"the lease of next_handoff"`
	Percent float64 `json:"percent,omitempty" min:"0" max:"100" jsonschema:"how much is done"`
	Message string  `json:"message,omitempty" max:"2048" jsonschema:"the current step, in words"`
}

func (c *caller) report(ctx context.Context, in reportIn) (answer, error) {
	state, err := c.Progress(ctx, in.Lease, protocol.Progress{Percent: in.Percent, Message: in.Message})
	if state.CancelRequested {
		return reported("Stop: the work was cancelled. Clean up, and finish with status cancelled.", state, err)
	}
	return reported("Noted. Go on.", state, err)
}

type finishIn struct {
	Lease     string `json:"lease" max:"1024" jsonschema:"the lease of next_handoff"`
	Status    string `json:"status,omitempty" enum:"success,partial,failed,cancelled" jsonschema:"default success; failed is tried again unless permanent; cancelled if you were asked to stop"`
	Result    string `json:"result,omitempty" max:"1048576" jsonschema:"the result: a text, or JSON as a text"`
	Summary   string `json:"summary,omitempty" max:"4096" jsonschema:"the result in a sentence; of failed: the failure"`
	Next      string `json:"next,omitempty" max:"128" jsonschema:"the agent that goes on with the result"`
	NextTask  string `json:"next_task,omitempty" max:"65536" jsonschema:"the task of that agent"`
	Permanent bool   `json:"permanent,omitempty" jsonschema:"of failed: no further attempt can mend it"`
}

func (c *caller) finish(ctx context.Context, in finishIn) (answer, error) {
	switch in.Status {
	case "failed":
		message := cmp.Or(in.Summary, in.Result)
		if message == "" {
			return answer{}, protocol.Errorf(protocol.CodeMissing, "summary", "is missing: describe the failure, for the next attempt")
		}
		state, err := c.Fail(ctx, in.Lease, broker.Failure{Code: "handler", Message: protocol.CutText(message, 2000), Retryable: !in.Permanent})
		return reported("Failed, as reported. You are free.", state, err)
	case "cancelled":
		state, err := c.Release(ctx, in.Lease, "stopped", nil)
		return reported("Given back. You are free.", state, err)
	}
	result := protocol.Result{Status: protocol.ResultStatus(in.Status), Summary: in.Summary}
	if in.Result != "" {
		result.Body = api.JSONOrText(in.Result)
	}
	if in.Next != "" {
		update := map[string]string{}
		if in.NextTask != "" {
			update["next_task"] = in.NextTask
		}
		next, _ := json.Marshal(in.Next) // of texts they do not fail
		updated, _ := json.Marshal(update)
		result.Command = &protocol.Command{Goto: next, Update: updated}
	}
	state, err := c.Complete(ctx, in.Lease, result)
	return reported("Finished. next_handoff has the next one.", state, err)
}
