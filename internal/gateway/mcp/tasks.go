package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// tasksExtension is the extension of tasks (SEP-2663), as of specification 2026-07-28.
const tasksExtension = "io.modelcontextprotocol/tasks"

// pollWork is the time between two questions for work, as advice to a client.
const pollWork = 5 * time.Second

// task is a task on the wire: the answer of a tool that made it, and of tasks/get.
type task struct {
	mcp.ResultBase
	ResultType     string              `json:"resultType"` // task, or complete
	TaskID         string              `json:"taskId"`
	Status         string              `json:"status"` // working, input_required, completed, failed or cancelled
	StatusMessage  string              `json:"statusMessage,omitempty"`
	CreatedAt      time.Time           `json:"createdAt"`
	LastUpdatedAt  time.Time           `json:"lastUpdatedAt"`
	TTL            *int64              `json:"ttlMs"` // null: handoffs are kept
	PollIntervalMS int64               `json:"pollIntervalMs,omitempty"`
	Result         *mcp.CallToolResult `json:"result,omitempty"`
	InputRequests  mcp.InputRequestMap `json:"inputRequests,omitempty"`
}

// taskOf is the task of an open handoff, by the last one of its chain.
func taskOf(first, last protocol.State) *task {
	return &task{ResultType: "task", TaskID: first.Ticket, Status: "working", StatusMessage: protocol.CutText(explain.Sentence(last), 500),
		CreatedAt: first.SubmittedAt, LastUpdatedAt: last.UpdatedAt, PollIntervalMS: api.PollAfter(last).Milliseconds()}
}

// end ends a task.
func (t *task) end(status string, result *mcp.CallToolResult) {
	t.Status, t.Result, t.PollIntervalMS = status, result, 0
}

// waitID is the id of a task that waits for work. The task has no other state.
type waitID struct {
	Agent   string
	Key     string // of the claim
	Minutes int    // of its lease
}

const waitPrefix = "next."

func (w waitID) String() string {
	return fmt.Sprintf("%s%d.%s.%s", waitPrefix, w.Minutes, w.Key, w.Agent)
}

func parseWaitID(id string) (w waitID, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(id, waitPrefix), ".", 3)
	if !strings.HasPrefix(id, waitPrefix) || len(parts) != 3 {
		return w, false
	}
	minutes, err := strconv.Atoi(parts[0])
	_, bad := uuid.Parse(parts[1])
	return waitID{parts[2], parts[1], minutes}, err == nil && bad == nil && minutes >= leaseMinutesMin && minutes <= leaseMinutesMax
}

func (w waitID) task() *task {
	now := time.Now().UTC()
	return &task{ResultType: "task", TaskID: w.String(), Status: "working", StatusMessage: "waits for work for " + w.Agent,
		CreatedAt: now, LastUpdatedAt: now, PollIntervalMS: pollWork.Milliseconds()}
}

type taskParams struct {
	mcp.ParamsBase
	TaskID         string               `json:"taskId"`
	RequestState   string               `json:"requestState,omitempty"`
	InputResponses mcp.InputResponseMap `json:"inputResponses,omitempty"`
}

// getTask reads a task. One that waits for work claims within this call.
func (c *caller) getTask(ctx context.Context, p *taskParams) (t *task, err error) {
	if wait, ok := parseWaitID(p.TaskID); ok {
		t, err = c.getWork(ctx, wait)
	} else {
		t, err = c.getHandoff(ctx, p.TaskID)
	}
	if err == nil {
		t.ResultType = "complete"
	}
	return t, err
}

func (c *caller) getHandoff(ctx context.Context, ticket string) (*task, error) {
	last, ready, err := c.waitChain(ctx, ticket, 0)
	if err != nil {
		return nil, err
	}
	first := last
	if last.Ticket != ticket {
		if first, err = c.Status(ctx, ticket); err != nil {
			return nil, err
		}
	}
	t := taskOf(first, last)
	switch key, form := c.question(last); {
	case form != nil:
		t.Status, t.InputRequests = "input_required", mcp.InputRequestMap{key: form}
	case !ready:
	case last.Outcome == protocol.OutcomeCancelled:
		t.end("cancelled", nil)
	default:
		a, err := c.end(ctx, ticket, last)
		if err != nil {
			return nil, err
		}
		t.end("completed", a.result(last.Outcome != protocol.OutcomeSuccess && last.Outcome != protocol.OutcomePartial))
	}
	return t, nil
}

func (c *caller) getWork(ctx context.Context, id waitID) (*task, error) {
	t := id.task()
	a, err := c.claim(ctx, id, 0)
	switch {
	case errors.Is(err, &protocol.Error{Code: protocol.CodeNothingToClaim}):
		return t, nil
	case err != nil:
		return nil, err
	}
	t.StatusMessage = "has work for " + id.Agent
	t.end("completed", a.result(false))
	return t, nil
}

// question returns the open question of a handoff and its key, as a form for the user of a host, if the caller may
// answer it.
func (c *caller) question(last protocol.State) (key string, form *mcp.ElicitParams) {
	open := lifecycle.QuestionOf(last)
	asks := !last.Closed && last.Conditions != nil && (open.Kind == lifecycle.AsksContext || open.Kind == lifecycle.AsksPermission)
	if !asks || c.who.Name != last.Source && c.who.Name != protocol.Human {
		return "", nil
	}
	properties := map[string]any{"answer": map[string]any{"type": "string", "title": "Answer", "maxLength": 4096}}
	if open.Kind == lifecycle.AsksPermission {
		properties["permit"] = map[string]any{"type": "boolean", "title": "Permit it"}
	}
	return "q-" + strconv.Itoa(open.N), &mcp.ElicitParams{Mode: "form",
		Message:         fmt.Sprintf("%s asks, about the task that you handed to it:\n%s", last.Agent, explain.Needs(*last.Conditions)),
		RequestedSchema: map[string]any{"type": "object", "properties": properties}}
}

// reply answers the question of a handoff with the form that a user has filled in. A user who declined has
// answered nothing.
func (c *caller) reply(ctx context.Context, last protocol.State, given mcp.InputResponse) (protocol.State, error) {
	form, ok := given.(*mcp.ElicitResult)
	if !ok || form.Action != "accept" {
		return last, nil
	}
	in := answerIn{Ticket: last.Ticket}
	in.Text, _ = form.Content["answer"].(string)
	if permit, decided := form.Content["permit"].(bool); decided {
		in.Decision = map[bool]string{true: "permit", false: "deny"}[permit]
	}
	return c.decide(ctx, last, in)
}

// done acknowledges a request about a task.
type done struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// updateTask answers the question of a task.
func (c *caller) updateTask(ctx context.Context, p *taskParams) (*done, error) {
	last, _, err := c.waitChain(ctx, p.TaskID, 0)
	if err != nil {
		return nil, err
	}
	key, form := c.question(last)
	reply, given := p.InputResponses[key]
	if form == nil || !given {
		return nil, protocol.Errorf(protocol.CodeConflict, "inputResponses", "answer no open question of %s", p.TaskID)
	}
	_, err = c.reply(ctx, last, reply)
	return &done{ResultType: "complete"}, err
}

// cancelTask cancels the handoff of a task. One that waits for work has claimed nothing, and nothing is kept of it.
func (c *caller) cancelTask(ctx context.Context, p *taskParams) (*done, error) {
	var err error
	if _, waits := parseWaitID(p.TaskID); !waits {
		_, err = c.Cancel(ctx, api.Cancel{Ticket: p.TaskID, Reason: "its task was cancelled"})
	}
	return &done{ResultType: "complete"}, err
}
