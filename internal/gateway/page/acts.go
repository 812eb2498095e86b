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
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// act is an act that a viewer may take: one form, and one operation.
type act struct {
	Op, Label string
	Does      string // its effect, before it is done
	Key       string // of the keyboard
	First     bool   // the likely one
	Args      []typed
	Fields    []field
	Refused   bool   // a moment ago: its fields have the typed texts
	Here      string // the view that the answer returns to
	Base      string
}

// ID names the form within its page.
func (a act) ID() string {
	return strings.Trim(strings.Join([]string{"f", a.Op, short(cmp.Or(a.arg("ticket"), a.arg("agent"))), a.arg("deny"), a.arg("let-others")}, "-"), "-")
}

// field is an input of a form.
type field struct {
	Name, Label, Kind, Value string // Kind: text, area, agent, number
	Required                 bool
	Choices                  []string
}

// Open reports that a person sees the fields at once.
func (a act) Open() bool { return a.First || a.Refused }

// deed is an act of the page: the operation of the api that it is, its form, and its words when it is done.
// {agent} and {source} in its words are those of the handoff, {name} is the agent that it is about.
type deed struct {
	operation, done  string
	label, does, key string
	fields           []field
	do               func(context.Context, *api.Session, url.Values) (string, error)
}

type form = url.Values

var (
	why     = field{Name: "reason", Label: "Why", Kind: "text"}
	needed  = field{Name: "reason", Label: "Why", Kind: "text", Required: true}
	another = field{Name: "to", Label: "To which agent", Kind: "agent", Required: true}
	inWords = field{Name: "text", Label: "Your answer", Kind: "area", Required: true}
)

var deeds = map[string]deed{
	explain.OpAnswer: {"Answer", "has your answer and goes on",
		"Answer", "{agent} gets your answer, and the work goes on where it stopped.", "a", nil, on(answer)},
	explain.OpApprove: {"Approve", "is approved, and its agent gets it now",
		"Approve", "{name} gets it now. This approval is for this handoff and this agent alone.", "a", nil, verdict((*api.Session).Approve)},
	explain.OpDeny: {"Deny", "is denied",
		"Deny…", "It closes, and {source} reads your reason.", "x", []field{needed}, verdict((*api.Session).Deny)},
	explain.OpReroute: {"Reroute", "goes to another agent",
		"Reroute…", "Another agent gets it, and {agent} no longer has it.", "r", []field{another, why},
		on(func(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
			return s.Reroute(ctx, api.Reroute{Ticket: ticket, To: f.Get("to"), Reason: f.Get("reason")})
		})},
	explain.OpRedrive: {"Redrive", "was submitted again",
		"Submit it again", "The same package is a new handoff.", "a", nil,
		on(func(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
			return s.Redrive(ctx, api.Redrive{Ticket: ticket, Again: f.Get("again") != ""})
		})},
	explain.OpDismiss: {"Dismiss", "is no longer in the inbox",
		"Leave it at that", "It leaves the inbox, and stays closed.", "x", nil, because((*api.Session).Dismiss)},
	explain.OpRollback: {"RollBack", "goes back to its source, undone",
		"Roll it back…", "It goes back to {source}, undone.", "", []field{needed}, because((*api.Session).RollBack)},
	explain.OpRaise: {"Raise", "has more to spend",
		"Raise its limit…", "It goes on with so much more.", "a", nil, on(raise)},
	"cancel": {"Cancel", "is being cancelled",
		"Cancel…", "It ends. A worker that has it is asked to stop.", "", []field{why},
		on(func(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
			return s.Cancel(ctx, api.Cancel{Ticket: ticket, Reason: f.Get("reason")})
		})},
	"submit": {"Submit", "was handed off",
		"Hand it off", "The agent gets it as soon as a worker is free.", "", nil, submit},
	explain.OpResume: {"ResumeAgent", "takes handoffs again",
		"Resume {name}", "Its workers take handoffs again.", "", nil, of((*api.Session).ResumeAgent)},
	"pause": {"PauseAgent", "is paused; its handoffs wait",
		"Pause {name}", "Its workers finish their handoffs, and take no more. Offers wait.", "", nil, of((*api.Session).PauseAgent)},
	explain.OpResetBreaker: {"ResetBreaker", "has a closed breaker",
		"Close the breaker of {name}", "Its handoffs go on at once. Do it once the agent has recovered.", "", nil,
		func(ctx context.Context, s *api.Session, f form) (string, error) {
			status, err := s.ResetBreaker(ctx, f.Get("agent"))
			return status.Agent, err
		}},
}

// on is a deed on a ticket that returns its state.
func on(do func(context.Context, *api.Session, string, form) (protocol.State, error)) func(context.Context, *api.Session, form) (string, error) {
	return func(ctx context.Context, s *api.Session, f form) (string, error) {
		state, err := do(ctx, s, f.Get("ticket"), f)
		return cmp.Or(state.Ticket, f.Get("ticket")), err
	}
}

// because is a deed on a ticket that takes no more than a reason.
func because(do func(*api.Session, context.Context, string, string) (protocol.State, error)) func(context.Context, *api.Session, form) (string, error) {
	return on(func(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
		return do(s, ctx, ticket, f.Get("reason"))
	})
}

func verdict(do func(*api.Session, context.Context, api.Verdict) (protocol.State, error)) func(context.Context, *api.Session, form) (string, error) {
	return on(func(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
		return do(s, ctx, api.Verdict{Ticket: ticket, Agent: f.Get("to"), Reason: f.Get("reason")})
	})
}

// of is a deed on an agent.
func of(do func(*api.Session, context.Context, string) (protocol.Profile, error)) func(context.Context, *api.Session, form) (string, error) {
	return func(ctx context.Context, s *api.Session, f form) (string, error) {
		p, err := do(s, ctx, f.Get("agent"))
		return p.ID, err
	}
}

func answer(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
	a := protocol.Answer{Text: f.Get("text"), Permit: f.Get("permit") != "", Deny: f.Get("deny") != "", LetOthers: f.Get("let-others") != ""}
	a.Question, _ = strconv.Atoi(f.Get("question"))
	if a.Deny {
		a.DenyReason = f.Get("reason")
	}
	for name, values := range f {
		if name, is := strings.CutPrefix(name, "var."); is && values[0] != "" {
			if a.Variables == nil {
				a.Variables = map[string]json.RawMessage{}
			}
			a.Variables[name] = api.JSONOrText(values[0])
		}
	}
	if err := a.Validate(); err != nil {
		return protocol.State{}, err
	}
	return s.Answer(ctx, ticket, a)
}

func raise(ctx context.Context, s *api.Session, ticket string, f form) (protocol.State, error) {
	number := func(name string) (n int64) { n, _ = strconv.ParseInt(f.Get(name), 10, 64); return n }
	more := protocol.Amounts{Tokens: number("tokens"), Handoffs: number("handoffs"), Agents: number("agents"), CostMicros: number("cost_micros")}
	return s.Raise(ctx, ticket, more)
}

func submit(ctx context.Context, s *api.Session, f form) (string, error) {
	pkg := protocol.Package{Key: f.Get("key"), Source: f.Get("source"), Target: protocol.Target{Agent: strings.TrimSpace(f.Get("to"))},
		Reason: f.Get("reason"), Task: protocol.Task{Description: f.Get("task")}}
	state, err := s.Submit(ctx, pkg)
	return state.Ticket, err
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
	form := r.PostForm
	done, known := deeds[form.Get("op")]
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
	for name, values := range form { // browsers send a line break as two characters
		for i := range values {
			form[name][i] = strings.ReplaceAll(values[i], "\r\n", "\n")
		}
	}
	defer p.counts.forget()
	defer p.fleets.forget()
	defer p.lanes.forget()
	if form.Get("bulk") != "" {
		p.bulk(x, form)
		return
	}
	about, err := done.do(r.Context(), x.session, form)
	if err == nil {
		to := p.here(r)
		if form.Get("op") == "submit" || form.Get("op") == explain.OpRedrive {
			to = p.cfg.BasePath + "/ui/t/" + about
		}
		http.Redirect(w, r, linkWith(to, "did", form.Get("op"), "on", about), http.StatusSeeOther)
		return
	}
	x.refused = x.explained(err, form.Get("ticket"))
	p.again(x, form)
}

// again shows the view of a form whose act was refused, with the typed texts.
func (p *Page) again(x *request, form url.Values) {
	at, _ := url.Parse(p.here(x.Request))
	x.Request = x.Clone(x.Context())
	x.URL = at
	x.frame.Here = at.RequestURI()
	path := strings.TrimPrefix(at.Path, p.cfg.BasePath)
	switch ticket, is := strings.CutPrefix(path, "/ui/t/"); {
	case is:
		x.SetPathValue("ticket", ticket)
		p.show(x, "handoff", p.handoff)
	case path == "/ui/inbox":
		query := at.Query()
		query.Set("open", form.Get("ticket"))
		at.RawQuery = query.Encode()
		p.show(x, "inbox", p.inbox)
	case path == "/ui" || path == "/ui/":
		p.show(x, "fleet", p.fleet)
	case path == "/ui/board":
		p.show(x, "board", p.board)
	default:
		p.show(x, "problem", func(*request) (any, error) { return nil, x.refused })
	}
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
				return explain.By(cmp.Or(by, "a supervisor")) + " " + words + " " + x.ago(e.When()) + "."
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
	t := &toast{Words: done.done, Agent: q.Get("on")}
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
	a := act{Op: op, Label: about.Replace(d.label), Does: about.Replace(d.does), Key: d.key, Fields: slices.Clone(d.fields), Here: x.frame.Here, Base: x.frame.Base}
	for i := 0; i+1 < len(args); i += 2 {
		a.Args = append(a.Args, typed{args[i], args[i+1]})
	}
	return a, known && x.may(d.operation)
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
	arg, agent, source := action.Args, explain.Person(cmp.Or(s.Agent, s.TargetWords())), explain.Person(s.Source)
	name := agent
	if s.Gate != nil {
		name = explain.Person(s.Gate.Agent)
	}
	name = cmp.Or(arg["agent"], name)
	about := strings.NewReplacer("{agent}", agent, "{source}", source, "{name}", name)
	if agent := arg["agent"]; agent != "" {
		return x.newAct(action.Op, about, "agent", agent)
	}
	a, may = x.newAct(action.Op, about, "ticket", s.Ticket)
	switch action.Op {
	case explain.OpAnswer:
		a.Args = append(a.Args, typed{"question", arg["question"]})
		a.answers(arg, agent, source)
	case explain.OpApprove:
		if a.First = true; s.Gate != nil {
			a.Args = append(a.Args, typed{"to", s.Gate.Agent})
		}
	case explain.OpRedrive:
		if a.First = true; arg["again"] != "" {
			a.Label += ", to all agents"
			a.Args = append(a.Args, typed{"again", "1"})
		}
	case explain.OpRaise:
		name := map[string]string{"max_cost_micros": "cost_micros", "max_handoffs": "handoffs", "max_agents": "agents"}[arg["limit"]]
		name = cmp.Or(name, "tokens")
		a.Fields = []field{{Name: name, Label: "How many more " + strings.ReplaceAll(name, "_micros", ", in millionths"), Kind: "number", Required: true}}
	}
	return a, may
}

// answers makes an answer one of its kinds: to permit, to deny, to let another agent have it, or in words.
func (a *act) answers(arg map[string]string, agent, source string) {
	has := func(name string) bool { _, is := arg[name]; return is }
	yes := func(name string) { a.Args = append(a.Args, typed{name, "1"}) }
	switch {
	case has("let-others"):
		a.Label, a.Does, a.Key, a.Fields = "Let another agent have it…", agent+" does not get it, and another agent is asked.", "", []field{needed}
		yes("deny")
		yes("let-others")
	case has("deny"):
		a.Label, a.Does, a.Key, a.Fields = "Deny…", "It closes, and "+source+" reads your reason.", "x", []field{needed}
		yes("deny")
	case has("permit"):
		a.Label, a.Does, a.First = "Permit", agent+" gets the permission, and goes on.", true
		yes("permit")
	default:
		a.First = true
	}
	for _, name := range strings.Fields(arg["set"]) {
		a.Fields = append(a.Fields, field{Name: "var." + name, Label: name, Kind: "text", Required: true})
	}
	if has("text") && !has("deny") {
		a.Fields = append(a.Fields, inWords)
	}
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
	a.Fields = []field{
		another,
		{Name: "task", Label: "The task", Kind: "area", Required: true},
		{Name: "reason", Label: "Why this handoff", Kind: "text", Required: true},
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
