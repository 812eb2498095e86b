package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

type handOffIn struct {
	SpecialistType       string                     `json:"specialist_type,omitempty" max:"256" jsonschema:"the agent, or a capability; see find_agent"`
	Specialists          []string                   `json:"specialists,omitempty" max:"32" jsonschema:"instead of specialist_type: several agents, each of which does the task"`
	Task                 string                     `json:"task" max:"65536" jsonschema:"the work, complete in itself"`
	Reason               string                     `json:"reason" max:"2048" jsonschema:"why you hand it off"`
	Context              map[string]json.RawMessage `json:"context,omitempty" jsonschema:"values that the agent needs, by name"`
	RequiredCapabilities []string                   `json:"required_capabilities,omitempty" max:"32" jsonschema:"capabilities that the agent must have"`
	Facts                []string                   `json:"facts,omitempty" max:"64" jsonschema:"known facts, a sentence each"`
	Files                []string                   `json:"files,omitempty" max:"64" jsonschema:"paths to read first"`
	Variables            []string                   `json:"variables,omitempty" max:"64" jsonschema:"values as in context, each NAME=VALUE"`
	DoneWhen             []string                   `json:"done_when,omitempty" max:"32" jsonschema:"criteria by which the result is judged"`
	ResultSchema         string                     `json:"result_schema,omitempty" max:"65536" jsonschema:"JSON Schema of the result, as a text"`
	Priority             string                     `json:"priority,omitempty" enum:"critical,high,normal,low" jsonschema:"default normal"`
	DeadlineMinutes      int                        `json:"deadline_minutes,omitempty" min:"1" max:"129600" jsonschema:"when it is too late, in minutes from now"`
	Conversation         string                     `json:"conversation,omitempty" max:"256" jsonschema:"id that groups handoffs"`
	Key                  string                     `json:"key,omitempty" max:"256" jsonschema:"the same key is the same handoff: repeat a call whose answer was lost with it"`
	WaitMS               int                        `json:"wait_ms,omitempty" min:"0" max:"20000" jsonschema:"milliseconds to wait for the end"`
}

// handOff submits a package.
func (c *caller) handOff(ctx context.Context, in handOffIn) (answer, error) {
	pkg, err := in.pack()
	if err != nil {
		return answer{}, err
	}
	if pkg.Target, pkg.Type, err = c.target(ctx, in); err != nil {
		return answer{}, err
	}
	state, err := c.Submit(ctx, pkg)
	if err != nil {
		return answer{}, err
	}
	if c.tasks && !state.Closed {
		return answer{task: taskOf(state, state)}, nil
	}
	last, ready, err := c.waitChain(ctx, state.Ticket, in.WaitMS)
	if err == nil && ready {
		return c.end(ctx, state.Ticket, last)
	}
	a, err := shown("Handed off as ticket "+state.Ticket, state.Ticket, last, err)
	a.text += "\nGo on with other work. check_handoff with this ticket has the result; wait_ms waits up to 20 s."
	return a, err
}

// pack makes the package of the arguments, without its target.
func (in *handOffIn) pack() (pkg protocol.Package, err error) {
	pkg = protocol.Package{Reason: in.Reason, Key: in.Key, Priority: protocol.Priority(in.Priority), Task: protocol.Task{Description: in.Task}}
	pkg.Context.KeyPoints, pkg.Expectations.SuccessCriteria = in.Facts, in.DoneWhen
	if pkg.Context.Variables, err = variables(in.Variables); err != nil {
		return pkg, err
	}
	for name, value := range in.Context {
		if _, twice := pkg.Context.Variables[name]; twice {
			return pkg, protocol.Errorf(protocol.CodeInvalid, "context."+name, "is a variable, too")
		}
		pkg.Context.Variables[name] = value
	}
	for _, path := range in.Files {
		pkg.Context.RelevantFiles = append(pkg.Context.RelevantFiles, protocol.FileReference{Path: path})
	}
	for _, id := range in.RequiredCapabilities {
		pkg.RequiredCapabilities = append(pkg.RequiredCapabilities, protocol.RequiredCapability{ID: id})
	}
	if in.ResultSchema != "" {
		if pkg.Expectations.OutputSchema = json.RawMessage(in.ResultSchema); !json.Valid(pkg.Expectations.OutputSchema) {
			return pkg, protocol.Errorf(protocol.CodeMalformed, "result_schema", "is no JSON")
		}
	}
	if in.DeadlineMinutes > 0 {
		pkg.Constraints.Deadline = time.Now().UTC().Truncate(time.Microsecond).Add(time.Duration(in.DeadlineMinutes) * time.Minute)
	}
	if in.Conversation != "" {
		pkg.Context.ConversationID = &in.Conversation
	}
	return pkg, nil
}

// variables reads NAME=VALUE.
func variables(pairs []string) (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	for i, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, protocol.Errorf(protocol.CodeMalformed, fmt.Sprintf("variables[%d]", i), "is not NAME=VALUE")
		}
		all[name] = api.JSONOrText(value)
	}
	return all, nil
}

// target finds the specialists in the directory: agents, or one capability. It refuses other names, which a model
// may have invented: the handoff would wait for such an agent.
func (c *caller) target(ctx context.Context, in handOffIn) (protocol.Target, protocol.Type, error) {
	agents, err := c.Agents(ctx)
	if err != nil {
		return protocol.Target{}, "", err
	}
	known, capable, names := map[string]bool{protocol.Human: true}, map[string]bool{}, []any{}
	for _, a := range agents {
		known[a.ID], names = true, append(names, a.ID)
		for _, can := range a.Capabilities {
			capable[can.ID] = true
		}
	}
	unknown := func(field, name string) error {
		return protocol.Errorf(protocol.CodeUnknownAgent, field, "no agent and no capability is called %s; there are %s",
			protocol.CutText(name, 64), listed(names[:min(len(names), specialistsMax)]))
	}
	for i, name := range in.Specialists {
		if !known[name] {
			return protocol.Target{}, "", unknown(fmt.Sprintf("specialists[%d]", i), name)
		}
	}
	switch name := in.SpecialistType; {
	case len(in.Specialists) > 0 && name != "":
		err = protocol.Errorf(protocol.CodeInvalid, "specialists", "is given with specialist_type: name one agent there, or several here")
	case len(in.Specialists) > 0:
		return protocol.Target{Agents: in.Specialists}, protocol.Broadcast, nil
	case known[name]:
		return protocol.Target{Agent: name}, "", nil
	case capable[name]:
		return protocol.Target{Capability: name}, "", nil
	case name != "":
		err = unknown("specialist_type", name)
	case len(in.RequiredCapabilities) > 0:
		return protocol.Target{Capability: in.RequiredCapabilities[0]}, "", nil
	default:
		err = protocol.Errorf(protocol.CodeMissing, "specialist_type", "is missing: name an agent or a capability, or give required_capabilities; find_agent lists both")
	}
	return protocol.Target{}, "", err
}

// view is a handoff for a program.
type view struct {
	Ticket   string           `json:"ticket"`
	Phase    protocol.Phase   `json:"phase"`
	Outcome  protocol.Outcome `json:"outcome,omitempty"`
	Agent    string           `json:"agent,omitempty"`
	Closed   bool             `json:"closed"`
	Sentence string           `json:"sentence,omitempty"`
	Task     string           `json:"task,omitempty"`
	Result   json.RawMessage  `json:"result,omitempty"`
	Details  any              `json:"details,omitempty"`
}

// viewOf shows a handoff by the last one of its chain.
func viewOf(ticket string, last protocol.State) view {
	return view{Ticket: ticket, Phase: last.Phase, Outcome: last.Outcome, Agent: last.Agent, Closed: last.Closed, Sentence: explain.Sentence(last)}
}

// shown answers an act on a handoff with its state.
func shown(done, ticket string, last protocol.State, err error) (answer, error) {
	v := viewOf(ticket, last)
	return answer{text: done + ". " + v.Sentence + ".", data: v}, err
}

// waitChain waits for the end of a chain, for so many milliseconds, and returns its last handoff.
func (c *caller) waitChain(ctx context.Context, ticket string, ms int) (protocol.State, bool, error) {
	request, _ := json.Marshal(map[string]any{"ticket": ticket, "until": api.UntilClosed, "wait_ms": ms})
	done, err := api.OperationOf("WaitChain").Do(ctx, c.Session, request)
	waited, _ := done.(api.Waited)
	return waited.State, waited.Ready, err
}

// resultMax bounds the result in the text of an answer; its structured content has it whole.
const resultMax = 64 << 10

// end shows the end of a chain.
func (c *caller) end(ctx context.Context, ticket string, last protocol.State) (answer, error) {
	v := viewOf(ticket, last)
	result, _, err := c.ChainResult(ctx, ticket)
	if errors.Is(err, broker.ErrNotFound) {
		return answer{text: v.Sentence + ". It has no result: check_handoff with view why or history explains the end.", data: v}, nil
	}
	text := ""
	if v.Result = result.Body; json.Unmarshal(result.Body, &text) != nil {
		text = string(result.Body)
	}
	return answer{text: v.Sentence + ".\n\n" + fenced(last.Agent, protocol.CutText(text, resultMax)), data: v}, err
}

type checkIn struct {
	Ticket string `json:"ticket,omitempty" max:"64" jsonschema:"the ticket; without it your open handoffs"`
	View   string `json:"view,omitempty" enum:"short,why,history,result" jsonschema:"default short, which has the result once it has ended"`
	WaitMS int    `json:"wait_ms,omitempty" min:"0" max:"20000" jsonschema:"milliseconds to wait for the end"`
}

func (c *caller) check(ctx context.Context, in checkIn) (answer, error) {
	if in.Ticket == "" {
		return c.mine(ctx)
	}
	last, ready, err := c.waitChain(ctx, in.Ticket, in.WaitMS)
	if err != nil {
		return answer{}, err
	}
	if key, form := c.question(last); form != nil && c.elicits {
		reply, replied := c.replies[key]
		if !replied {
			return answer{ask: mcp.InputRequestMap{key: form}}, nil
		}
		if last, err = c.reply(ctx, last, reply); err != nil {
			return answer{}, err
		}
	}
	v := viewOf(in.Ticket, last)
	switch {
	case in.View == "why":
		why, err := c.Why(ctx, last.Ticket, time.UTC)
		v.Details = why
		return answer{text: strings.Join(why.Sentences, " ") + actions(why.Actions), data: v}, err
	case in.View == "history":
		return c.history(ctx, v, last.Ticket)
	case ready:
		return c.end(ctx, in.Ticket, last)
	}
	text := v.Sentence + "."
	if in.View == "result" {
		text += " It has no result yet."
	}
	if last.Conditions != nil {
		text += "\n\n" + fenced(last.Agent, explain.Needs(*last.Conditions)) + "\nanswer_handoff answers it."
	}
	return answer{text: text, data: v}, nil
}

// toolsOf are the tools for the actions of an explanation.
var toolsOf = map[string]string{explain.OpAnswer: "answer_handoff", explain.OpApprove: "answer_handoff with decision approve",
	explain.OpDeny: "answer_handoff with decision deny", explain.OpInbox: "inbox", explain.OpAgents: "find_agent",
	explain.OpResult: "check_handoff with view result", explain.OpHistory: "check_handoff with view history"}

// actions lists the actions that have a tool.
func actions(all []explain.Action) (text string) {
	for _, a := range all {
		if name := toolsOf[a.Op]; name != "" {
			text += "\n- to " + a.To + ": " + name
		}
	}
	return text
}

// mine lists the caller's open handoffs.
func (c *caller) mine(ctx context.Context) (answer, error) {
	open := true
	page, err := c.List(ctx, ask.ListQuery{Filter: ask.Filter{Source: []string{c.who.Name}, Open: &open}, Limit: 25})
	text, all := explain.Count(len(page.Handoffs), "open handoff")+" of yours.", []view{}
	for _, row := range page.Handoffs {
		all = append(all, view{Ticket: row.Ticket, Phase: row.Phase, Agent: row.Agent, Task: row.Description})
		text += fmt.Sprintf("\n- %s %s, %s: %s", row.Ticket, row.Phase, row.Agent, protocol.Printable(row.Description))
	}
	return answer{text: text, data: map[string]any{"handoffs": all}}, err
}

func (c *caller) history(ctx context.Context, v view, ticket string) (answer, error) {
	changes, err := c.History(ctx, ticket)
	if err != nil {
		return answer{}, err
	}
	lines := ""
	for _, change := range changes {
		for _, e := range change.Record.Events {
			by, detail := explain.Event(e)
			lines += "\n" + explain.Join(explain.Instant(change.At), string(e.EventType()), by, detail)
		}
	}
	v.Details, err = dossier.History(changes)
	return answer{text: v.Sentence + ".\n\n" + fenced("its agents", strings.TrimSpace(lines)), data: v}, err
}

type findIn struct {
	Task string `json:"task,omitempty" max:"8192" jsonschema:"the task, in words"`
}

// findMax is the number of agents that are found for a task.
const findMax = 5

// specialist is an agent as a model chooses it.
type specialist struct {
	Agent        string           `json:"agent"`
	Description  string           `json:"description,omitempty"`
	Capabilities []string         `json:"capabilities,omitempty"`
	Availability api.Availability `json:"availability"`
}

func (c *caller) findAgent(ctx context.Context, in findIn) (answer, error) {
	agents, err := c.Agents(ctx)
	if err != nil {
		return answer{}, err
	}
	text := explain.Count(len(agents), "agent") + "."
	if in.Task != "" {
		found, err := c.FindAgents(ctx, in.Task, findMax)
		if err != nil && !errors.Is(err, &protocol.Error{Code: protocol.CodeNoMatch}) {
			return answer{}, err
		}
		all := agents
		agents = nil
		for _, f := range found.Found {
			if i := slices.IndexFunc(all, func(a api.AgentStatus) bool { return a.ID == f.Agent }); i >= 0 {
				agents = append(agents, all[i])
			}
		}
		text = "None fits for certain; choose by the descriptions, or do it yourself."
		if found.Certain {
			text = "The first fits."
		}
	}
	list := []specialist{}
	for _, a := range agents {
		s := specialist{Agent: a.ID, Description: a.Description, Availability: a.Availability}
		for _, can := range a.Capabilities {
			s.Capabilities = append(s.Capabilities, can.ID)
		}
		list = append(list, s)
		text += fmt.Sprintf("\n- %s (%s): %s [%s]", s.Agent, s.Availability, protocol.Printable(protocol.CutText(s.Description, 300)), strings.Join(s.Capabilities, ", "))
	}
	return answer{text: text, data: map[string]any{"agents": list}}, nil
}

// inboxMax bounds the entries of an answer: those that were submitted first.
const inboxMax = 25

func (c *caller) inbox(ctx context.Context, _ struct{}) (answer, error) {
	waiting, err := c.FirstInbox(ctx, "", inboxMax+1)
	if err != nil {
		return answer{}, err
	}
	all, err := dossier.InboxOf(ctx, c.Session, waiting)
	entries := append([]dossier.InboxEntry{}, all.Entries[:min(len(all.Entries), inboxMax)]...)
	text := explain.Count(len(entries), "handoff")
	if len(waiting) > inboxMax {
		text += " and more"
	}
	text += " in the inbox."
	for _, e := range entries {
		text += fmt.Sprintf("\n- %s %s, of %s: %s", e.Ticket, e.Why, e.Agent, protocol.Printable(protocol.CutText(e.Words, 300)))
	}
	if len(entries) > 0 {
		text += "\nThe words are of other agents. answer_handoff answers, check_handoff explains."
	}
	return answer{text: text, data: map[string]any{"entries": entries}}, err
}

type answerIn struct {
	Ticket    string   `json:"ticket" max:"64" jsonschema:"the handoff that asks"`
	Decision  string   `json:"decision,omitempty" enum:"answer,permit,deny,approve" jsonschema:"default answer, to a question; permit or deny a permission; approve or deny an approval"`
	Text      string   `json:"text,omitempty" max:"65536" jsonschema:"the answer, or the reason of a denial"`
	Variables []string `json:"variables,omitempty" max:"64" jsonschema:"values that the agent asked for, each NAME=VALUE"`
}

func (c *caller) answerHandoff(ctx context.Context, in answerIn) (answer, error) {
	state, err := c.Status(ctx, in.Ticket)
	if err != nil {
		return answer{}, err
	}
	state, err = c.decide(ctx, state, in)
	return shown("Answered", in.Ticket, state, err)
}

// decide answers the question of a handoff, or gives the verdict that it waits for.
func (c *caller) decide(ctx context.Context, s protocol.State, in answerIn) (protocol.State, error) {
	given, err := variables(in.Variables)
	if err != nil {
		return s, err
	}
	question, verdict := lifecycle.QuestionOf(s), api.Verdict{Ticket: in.Ticket, Reason: in.Text}
	switch approval := question.Kind == lifecycle.AsksApproval; {
	case approval && in.Decision == "approve":
		return c.Approve(ctx, verdict)
	case approval && in.Decision == "deny":
		return c.Deny(ctx, verdict)
	case approval:
		return s, protocol.Errorf(protocol.CodeInvalid, "decision", "%s waits for an approval: decide approve or deny", in.Ticket)
	case in.Decision == "approve":
		return s, protocol.Errorf(protocol.CodeInvalid, "decision", "%s waits for no approval; permit gives a permission", in.Ticket)
	case in.Decision == "deny":
		return c.Answer(ctx, s.Ticket, protocol.Answer{Question: question.N, Deny: true, DenyReason: in.Text})
	}
	return c.Answer(ctx, s.Ticket, protocol.Answer{Question: question.N, Text: in.Text, Variables: given, Permit: in.Decision == "permit"})
}

type cancelIn struct {
	Ticket string `json:"ticket" max:"64" jsonschema:"the handoff to stop"`
	Reason string `json:"reason,omitempty" max:"2048" jsonschema:"why"`
}

func (c *caller) cancel(ctx context.Context, in cancelIn) (answer, error) {
	state, err := c.Cancel(ctx, api.Cancel{Ticket: in.Ticket, Reason: in.Reason})
	return shown("Asked to stop", in.Ticket, state, err)
}
