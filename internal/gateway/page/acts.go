package page

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// act is an act that a viewer may take: one form, and one operation.
type act struct {
	deed
	Op      string
	First   bool // the likely one
	Args    []typed
	Refused bool   // a moment ago: its fields have the typed texts
	Here    string // the view that the answer returns to
	Base    string
}

// ID names the form within its page.
func (a act) ID() string {
	return strings.Trim(strings.Join([]string{"f", a.Op, short(cmp.Or(a.arg("ticket"), a.arg("agent"))) + a.arg("name"), a.arg("deny"), a.arg("let-others")}, "-"), "-")
}

// field is an input of a form.
type field struct {
	Name, Label, Kind, Value string // Kind: text, area, agent, number
	Required                 bool
	Choices                  []string
}

// Open reports that a person sees the fields at once.
func (a act) Open() bool { return a.First || a.Refused }

// deed is an act of the page: the operation of the api that it is, its words when it is done, and its form.
// A second word in its name is the kind of an answer. {agent} and {source} in its words are those of the handoff, {name} is the agent that it is about.
type deed struct {
	Operation, Done string
	Label           string
	Does            string // its effect, before it is done
	Key             string // of the keyboard
	Fields          []field
}

var (
	why     = field{Name: "reason", Label: "Why", Kind: "text"}
	needed  = field{Name: "reason", Label: "Why", Kind: "text", Required: true}
	another = field{Name: "to", Label: "To which agent", Kind: "agent", Required: true}
	inWords = field{Name: "text", Label: "Your answer", Kind: "area", Required: true}
)

var deeds = map[string]deed{
	explain.OpAnswer:       {"Answer", "has your answer and goes on", "Answer", "{agent} gets your answer, and the work goes on where it stopped.", "a", nil},
	"answer permit":        {"Answer", "has your answer and goes on", "Permit", "{agent} gets the permission, and goes on.", "a", nil},
	"answer deny":          {"Answer", "has your answer and goes on", "Deny…", "It closes, and {source} reads your reason.", "x", []field{needed}},
	"answer let-others":    {"Answer", "has your answer and goes on", "Let another agent have it…", "{agent} does not get it, and another agent is asked.", "", []field{needed}},
	explain.OpApprove:      {"Approve", "is approved, and its agent gets it now", "Approve", "{name} gets it now. This approval is for this handoff and this agent alone.", "a", nil},
	explain.OpDeny:         {"Deny", "is denied", "Deny…", "It closes, and {source} reads your reason.", "x", []field{needed}},
	explain.OpReroute:      {"Reroute", "goes to another agent", "Reroute…", "Another agent gets it, and {agent} no longer has it.", "r", []field{another, why}},
	explain.OpRedrive:      {"Redrive", "was submitted again", "Submit it again", "The same package is a new handoff.", "a", nil},
	explain.OpDismiss:      {"Dismiss", "is no longer in the inbox", "Leave it at that", "It leaves the inbox, and stays closed.", "x", nil},
	explain.OpRollback:     {"RollBack", "goes back to its source, undone", "Roll it back…", "It goes back to {source}, undone.", "", []field{needed}},
	explain.OpRaise:        {"Raise", "has more to spend", "Raise its limit…", "It goes on with so much more.", "a", nil},
	"cancel":               {"Cancel", "is being cancelled", "Cancel…", "It ends. A worker that has it is asked to stop.", "", []field{why}},
	"submit":               {"Submit", "was handed off", "Hand it off", "The agent gets it as soon as a worker is free.", "", []field{another, {Name: "task", Label: "The task", Kind: "area", Required: true}, {Name: "reason", Label: "Why this handoff", Kind: "text", Required: true}}},
	explain.OpResume:       {"ResumeAgent", "takes handoffs again", "Resume {name}", "Its workers take handoffs again.", "", nil},
	"pause":                {"PauseAgent", "is paused; its handoffs wait", "Pause {name}", "Its workers finish their handoffs, and take no more. Offers wait.", "", nil},
	"pause-schedule":       {"PauseSchedule", "is paused", "Pause", "It begins no handoff until it is resumed. Open handoffs continue.", "", nil},
	"resume-schedule":      {"ResumeSchedule", "goes on", "Resume", "It begins handoffs again, and makes up for none of the pause.", "", nil},
	"run-schedule":         {"RunSchedule", "is submitted", "Run now", "It begins a handoff now, in addition to its instants.", "", nil},
	"pause-rule":           {"PauseRule", "is paused", "Pause", "The signals of the pause begin nothing. Open handoffs continue.", "", nil},
	"resume-rule":          {"ResumeRule", "goes on", "Resume", "Signals begin handoffs again.", "", nil},
	explain.OpResetBreaker: {"ResetBreaker", "has a closed breaker", "Close the breaker of {name}", "Its handoffs go on at once. Do it once the agent has recovered.", "", nil},
}

// requestOf makes the request of the operation of a form.
func requestOf(form url.Values) any {
	ticket := form.Get("ticket")
	has := func(name string) bool { return form.Get(name) != "" }
	number := func(name string) (n int64) { n, _ = strconv.ParseInt(form.Get(name), 10, 64); return n }
	switch form.Get("op") {
	case explain.OpAnswer:
		a := protocol.Answer{Question: int(number("question")), Text: form.Get("text"), Permit: has("permit"), Deny: has("deny"), LetOthers: has("let-others"), Variables: map[string]json.RawMessage{}}
		if a.Deny {
			a.DenyReason = form.Get("reason")
		}
		for name := range form {
			if variable, is := strings.CutPrefix(name, "var."); is && has(name) {
				a.Variables[variable] = api.JSONOrText(form.Get(name))
			}
		}
		return map[string]any{"ticket": ticket, "answer": a}
	case explain.OpRaise:
		return map[string]any{"ticket": ticket, "more": protocol.Amounts{Tokens: number("tokens"), Handoffs: number("handoffs"), Agents: number("agents"), CostMicros: number("cost_micros")}}
	case explain.OpRedrive:
		return api.Redrive{Ticket: ticket, Again: has("again")}
	case "submit":
		return map[string]any{"package": map[string]any{"key": form.Get("key"), "source": form.Get("source"), "reason": form.Get("reason"),
			"target": map[string]string{"agent": strings.TrimSpace(form.Get("to"))}, "task": map[string]string{"description": form.Get("task")}}}
	}
	request := map[string]string{}
	for _, name := range []string{"ticket", "agent", "name", "to", "reason"} {
		if has(name) {
			request[name] = form.Get(name)
		}
	}
	return request
}

// do performs the operation of a form, and returns the ticket or the agent that it was about.
func (x *request) do(ctx context.Context, form url.Values) (about string, err error) {
	body, err := protocol.Marshal(requestOf(form))
	if err != nil {
		return "", err
	}
	answer, err := api.OperationOf(deeds[form.Get("op")].Operation).Do(ctx, x.session, body)
	switch answer := answer.(type) {
	case api.Submitted:
		about = answer.State.Ticket
	case protocol.State:
		about = answer.Ticket
	}
	return cmp.Or(about, form.Get("ticket"), form.Get("agent"), form.Get("name")), err
}

// act does one act, and returns to the view that it was sent from.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, formBytesMax)
	err := r.ParseForm()
	if err == nil {
		err = fromHere(r)
	} else {
		err = protocol.Errorf(protocol.CodeTooLarge, "form", "is larger than %d bytes", formBytesMax)
	}
	caller, unknown := p.caller(r)
	if err == nil && unknown != nil {
		p.askSign(w, r, "Your session is over. Nothing was sent, and your words are kept.", r.PostForm)
		return
	}
	x := p.request(w, r, caller)
	form, op := r.PostForm, r.PostForm.Get("op")
	_, known := deeds[op]
	switch {
	case err != nil:
	case !known:
		err = protocol.Errorf(protocol.CodeInvalid, "op", "is no act of this page")
	case p.cfg.ReadOnly:
		err = protocol.Errorf(protocol.CodeForbidden, "op", "this page is read-only")
	}
	if err != nil {
		p.show(x, "problem", func(*request) (any, error) { return nil, err })
		return
	}
	for _, values := range form { // browsers send a line break as two characters
		for i := range values {
			values[i] = strings.ReplaceAll(values[i], "\r\n", "\n")
		}
	}
	defer p.forget()
	if form.Get("bulk") != "" {
		p.bulk(x, form)
		return
	}
	about, err := x.do(r.Context(), form)
	if err != nil {
		p.again(x, x.explained(err, form.Get("ticket")))
		return
	}
	to := p.here(r)
	if op == "submit" || op == explain.OpRedrive {
		to = p.cfg.BasePath + "/ui/t/" + about
	}
	http.Redirect(w, r, linkWith(to, "did", op, "on", about), http.StatusSeeOther)
}

// refusedKey is the key of the error of an act in the context of the view that is shown again.
type refusedKey struct{}

// again shows the view of a form whose act was refused, with the typed texts.
func (p *Page) again(x *request, err error) {
	at, _ := url.Parse(strings.TrimPrefix(p.here(x.Request), p.cfg.BasePath))
	if ticket := x.PostForm.Get("ticket"); at.Path == "/ui/inbox" && ticket != "" {
		at, _ = url.Parse(linkWith(at.String(), "open", ticket))
	}
	view := x.Clone(context.WithValue(x.Context(), refusedKey{}, err))
	view.Method, view.URL = http.MethodGet, at
	p.mux.ServeHTTP(x.w, view)
}

// explained adds to a refusal who was first.
func (x *request) explained(err error, ticket string) error {
	refusal, _ := api.Refusal(err)
	switch refusal.Code {
	case protocol.CodeConflict, protocol.CodeClosed, protocol.CodeIllegal, protocol.CodeGone:
		if who := x.decided(ticket); who != "" {
			return protocol.Errorf(refusal.Code, refusal.Field, "%s", refusal.Message+". "+who)
		}
	}
	return err
}

// decisions are the events of decisions about a handoff, in words.
var decisions = map[protocol.EventType]string{
	protocol.EventAnswered: "answered it", protocol.EventApproved: "approved it", protocol.EventDenied: "denied it", protocol.EventTaken: "took it",
	protocol.EventRerouted: "gave it to another agent", protocol.EventCancelRequested: "cancelled it", protocol.EventRolledBack: "rolled it back",
	protocol.EventRaised: "raised its limits", protocol.EventDismissed: "dismissed it", protocol.EventRedriven: "submitted it again",
}

// decided is who decided last about a handoff, and when; empty without a decision.
func (x *request) decided(ticket string) string {
	changes, _, err := x.session.Past(x.Context(), ticket, 0, changesMax)
	if err != nil {
		return ""
	}
	for i := len(changes) - 1; i >= 0; i-- {
		for _, e := range changes[i].Record.Events {
			if words := decisions[e.EventType()]; words != "" {
				by, _ := explain.Event(e)
				return explain.By(cmp.Or(by, "a supervisor")) + " " + words + " " + x.frame.Ago(e.When()) + "."
			}
		}
	}
	return ""
}

// toast is the effect of an act, in words.
type toast struct{ Words, Ticket, Agent string }

func toastOf(r *http.Request) *toast {
	q := r.URL.Query()
	done, known := deeds[q.Get("did")]
	if !known {
		return nil
	}
	if n, err := strconv.Atoi(q.Get("n")); err == nil && n > 0 && n <= bulkMax {
		for _, a := range bulkActs {
			if a.Op == q.Get("did") {
				return &toast{Words: explain.Is(explain.Count(n, "handoff"), n) + " " + a.done}
			}
		}
	}
	t := &toast{Words: done.Done, Agent: q.Get("on")}
	if ticket, err := protocol.ParseTicket(q.Get("on")); err == nil {
		t.Ticket, t.Agent = ticket, ""
	} else if protocol.CheckID("on", t.Agent) != nil {
		return nil
	}
	return t
}

// newAct makes the form of a deed, if the caller may. The words have the names of about: pairs like {agent}
// and a name; the arguments are pairs, too.
func (x *request) newAct(op string, about *strings.Replacer, args ...string) (act, bool) {
	d, known := deeds[op]
	d.Label, d.Does, d.Fields = about.Replace(d.Label), about.Replace(d.Does), slices.Clone(d.Fields)
	a := act{deed: d, Op: op, Here: x.frame.Here, Base: x.frame.Base}
	for i := 0; i+1 < len(args); i += 2 {
		a.Args = append(a.Args, typed{args[i], args[i+1]})
	}
	return a, known && x.may(d.Operation)
}

// actsOf makes forms of the actions of an explanation, and of those that are always possible. Actions that
// are no acts of the page remain as command lines.
func (x *request) actsOf(s protocol.State, actions []explain.Action) (acts []act, commands []typed) {
	for _, action := range actions {
		a, may := x.actOf(s, action)
		_, known := deeds[action.Op]
		if known && !may {
			continue
		}
		if known {
			acts = append(acts, a)
		}
		if command := x.command(action); command != "" {
			commands = append(commands, typed{action.To, command})
		}
	}
	always := func(op string) {
		a, may := x.actOf(s, explain.NewAction("", op))
		if may && !slices.ContainsFunc(acts, func(a act) bool { return a.Op == op }) {
			acts = append(acts, a)
		}
	}
	switch {
	case s.Closed && lifecycle.CheckRedrive(s) == nil:
		always(explain.OpRedrive)
	case !s.Closed:
		always(explain.OpReroute)
		if !s.CancelRequested {
			always("cancel")
		}
	}
	x.refill(acts)
	return acts, commands
}

// refill puts the typed texts into the form whose act was refused.
func (x *request) refill(acts []act) {
	if x.refused == nil {
		return
	}
	for i := range acts {
		a := &acts[i]
		if a.Op != x.PostForm.Get("op") || x.PostForm.Get("deny") != a.arg("deny") || x.PostForm.Get("let-others") != a.arg("let-others") {
			continue
		}
		a.Refused = true
		for j := range a.Fields {
			a.Fields[j].Value = x.PostForm.Get(a.Fields[j].Name)
		}
	}
}

func (a act) arg(name string) string {
	for _, arg := range a.Args {
		if arg.Name == name {
			return arg.Value
		}
	}
	return ""
}

// actOf makes the form of one action.
func (x *request) actOf(s protocol.State, action explain.Action) (a act, may bool) {
	arg, agent := action.Args, explain.Person(cmp.Or(s.Agent, s.TargetWords()))
	name := agent
	if s.Gate != nil {
		name = explain.Person(s.Gate.Agent)
	}
	about := strings.NewReplacer("{agent}", agent, "{source}", explain.Person(s.Source), "{name}", cmp.Or(arg["agent"], name))
	if agent := arg["agent"]; agent != "" {
		return x.newAct(action.Op, about, "agent", agent)
	}
	op, args := action.Op, []string{"ticket", s.Ticket}
	has := func(name string) bool { _, is := arg[name]; return is }
	add := func(name, value string) { args = append(args, name, value) }
	var fields []field
	switch op {
	case explain.OpAnswer:
		add("question", arg["question"])
		for _, kind := range []string{"permit", "deny", "let-others"} { // one that lets others is a denial
			if has(kind) {
				op = action.Op + " " + kind
				add(kind, "1")
			}
		}
		for _, name := range strings.Fields(arg["set"]) {
			fields = append(fields, field{Name: "var." + name, Label: name, Kind: "text", Required: true})
		}
		if has("text") && !has("deny") {
			fields = append(fields, inWords)
		}
	case explain.OpApprove:
		if s.Gate != nil {
			add("agent", s.Gate.Agent)
		}
	case explain.OpRedrive:
		if arg["again"] != "" {
			add("again", "1")
		}
	case explain.OpRaise:
		name := cmp.Or(map[string]string{"max_cost_micros": "cost_micros", "max_handoffs": "handoffs", "max_agents": "agents"}[arg["limit"]], "tokens")
		fields = []field{{Name: name, Label: "How many more " + strings.ReplaceAll(name, "_micros", ", in millionths"), Kind: "number", Required: true}}
	}
	a, may = x.newAct(op, about, args...)
	a.Op, a.Fields = action.Op, append(a.Fields, fields...)
	a.First = slices.Contains([]string{explain.OpAnswer, "answer permit", explain.OpApprove, explain.OpRedrive}, op)
	if a.arg("again") != "" {
		a.Label += ", to all agents"
	}
	return a, may
}

// submitAct is the form to hand something off.
func (x *request) submitAct(agents []api.AgentStatus) *act {
	key := uuid.NewString()
	if x.shared {
		key = "" // the script keeps that of the form
	}
	a, may := x.newAct("submit", strings.NewReplacer(), "key", key)
	if !may {
		return nil
	}
	var names []string
	for _, agent := range agents {
		names = append(names, agent.ID)
	}
	a.Fields[0].Choices = names
	if all := []act{a}; x.refused != nil {
		x.refill(all)
		a = all[0]
		if key := x.PostForm.Get("key"); key != "" {
			a.Args[0].Value = key
		}
	}
	return &a
}
