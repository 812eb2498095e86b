package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	textBytesMax = 12 << 10 // of one text of a view
	auditMax     = 100      // entries of the tab, the newest
	titleBytes   = 120
)

// handoffView shows the course of a handoff, why it waits, its next step and the acts.
type handoffView struct {
	State    protocol.State
	Mark     mark
	Title    string
	Class    string // of the note
	Ask      string // the first sentence, or the question
	Then     []string
	Acts     []act
	Commands []typed
	Time     *timeline
	Chain    *chain
	Notes    []string
	Tab      string // the chosen one
	Facts    []typed
	Lists    []list
	Text     []typed // longer texts
	Audit    []entry
	Cut      string // the command that prints the whole
	Before   uint64 // a link to earlier changes; 0 without
	Past     bool   // these are no longer the last changes
}

var tabs = []string{"brief", "package", "result", "context", "audit"}

type list struct {
	Label string
	Items []string
}

// entry is a change of the audit.
type entry struct{ At, By, Event, Words, Hash string }

// handoff reads one handoff. Its family is the one question to the index, and the explanation of a
// handoff in a queue another.
func (p *Page) handoff(x *request) (any, error) {
	ticket, err := protocol.ParseTicket(x.PathValue("ticket"))
	if err != nil {
		if ticket, err = x.session.Find(x.Context(), x.PathValue("ticket")); err != nil {
			return nil, err
		}
	}
	x.frame.Ticket = ticket
	var (
		v       handoffView
		why     explain.Explanation
		changes []protocol.Change
		tree    dossier.Tree
		raw     json.RawMessage
		earlier bool
	)
	state, err := x.session.Status(x.Context(), ticket)
	if err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { why, err = x.session.Why(ctx, ticket, x.frame.zone); return err })
	before, _ := strconv.ParseUint(x.URL.Query().Get("before"), 10, 64)
	group.Go(func() (err error) {
		changes, earlier, err = x.session.Past(ctx, ticket, before, changesMax)
		return err
	})
	group.Go(func() (err error) { tree, err = dossier.TreeOf(ctx, x.session, ticket); return err })
	group.Go(func() (err error) {
		if raw, err = x.session.Package(ctx, ticket); errors.Is(err, broker.ErrNotFound) {
			err = nil // the ledger has dropped it
		}
		return err
	})
	group.Go(func() error { x.count(true); return nil })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	pkg, unreadable := protocol.DecodePackage(raw)
	v.State, v.Mark = state, markOf(state)
	v.Title = cmp.Or(protocol.CutText(oneLine(pkg.Task.Description), titleBytes), "a handoff without a package")
	x.frame.Title = v.Mark.Glyph + " " + v.Title
	v.note(x, why)
	v.Acts, v.Commands = x.actsOf(state, why.Actions)
	if v.Past = before > 0; earlier {
		v.Before = changes[0].Seq
	}
	v.Time = x.timeline(state, changes, v.Past)
	v.Chain, v.Notes = chainOf(tree, state, changes), tree.Notes
	return &v, v.fill(x, raw, &pkg, unreadable == nil, changes)
}

// note fills in the sentence, and the next step.
func (v *handoffView) note(x *request, why explain.Explanation) {
	s := v.State
	v.Class = v.Mark.Class
	sentences := why.Sentences
	switch {
	case s.Phase == protocol.Conditional && s.Conditions != nil:
		v.Mark.Word = explain.Person(s.Agent) + " asks"
		sentences = sentences[min(1, len(sentences)):] // it repeats the question
		if words := oneLine(s.Conditions.Reason); words != "" {
			v.Then = []string{"“" + protocol.CutText(words, 300) + "”"}
		}
		needs := slices.Concat(s.Conditions.NeedsContext, s.Conditions.NeedsPermission)
		v.Ask = "“" + protocol.CutText(oneLine(cmp.Or(strings.Join(needs, "; "), s.Conditions.Reason)), 600) + "”"
	case s.Closed && len(sentences) == 0:
		v.Ask = explain.Ended(s)
	case len(sentences) > 0:
		v.Ask, sentences = sentences[0], sentences[1:]
	}
	v.Then = append(v.Then, sentences...)
}

// fill reads the chosen tab.
func (v *handoffView) fill(x *request, raw json.RawMessage, pkg *protocol.Package, readable bool, changes []protocol.Change) error {
	if v.Tab = x.URL.Query().Get("tab"); !slices.Contains(tabs, v.Tab) {
		v.Tab = tabs[0]
	}
	ticket := v.State.Ticket
	switch v.Tab {
	case "package":
		v.text("The package, as it is stored", indented(raw), "handoff show "+ticket+" -o json")
	case "result":
		return v.result(x, ticket)
	case "context":
		whole, err := x.session.Context(x.Context(), ticket)
		if err != nil {
			return err
		}
		for _, part := range brief.Parts(whole) {
			v.fact(part.Thing+"s", fmt.Sprint(part.N))
		}
		body, err := protocol.Marshal(whole)
		if err != nil {
			return err
		}
		v.text("", indented(body), "handoff show "+ticket+" --context")
	case "audit":
		v.audit(x, changes)
	default:
		if !readable {
			v.fact("package", "the ledger no longer has it, or it cannot be read")
			return nil
		}
		v.brief(pkg)
	}
	return nil
}

func (v *handoffView) fact(label, text string) {
	if text = oneLine(text); text != "" {
		v.Facts = append(v.Facts, typed{label, protocol.CutText(text, 1_000)})
	}
}

func (v *handoffView) text(label, text, command string) {
	if len(text) > textBytesMax {
		v.Cut = command
	}
	if text != "" {
		v.Text = append(v.Text, typed{label, protocol.CutText(text, textBytesMax)})
	}
}

// brief is the package for a person.
func (v *handoffView) brief(p *protocol.Package) {
	v.text("", p.Task.Description, "handoff show "+v.State.Ticket+" -o json")
	v.fact("why", p.Reason)
	for _, l := range []list{{"It must", p.Task.Requirements}, {"It is good if", p.Expectations.SuccessCriteria}, {"To know", p.Context.KeyPoints}} {
		if len(l.Items) > 0 {
			l.Items = l.Items[:min(len(l.Items), 20)]
			v.Lists = append(v.Lists, l)
		}
	}
	for _, f := range brief.Facts(p)[4:] {
		v.fact(f.Label, f.Text)
	}
	var parts []string
	for _, part := range brief.Parts(p.Context) {
		parts = append(parts, explain.Count(part.N, part.Thing))
	}
	s := v.State
	v.fact("context", strings.Join(parts, ", "))
	v.fact("priority", string(s.Priority))
	v.fact("attempt", explain.Attempt(s))
	v.fact("progress", explain.Progress(s))
	v.fact("estimate", explain.Estimate(s))
	v.fact("limits left", explain.Limits(s))
	if s.Usage != nil {
		v.fact("used so far", explain.Usage(s.Usage.Total()))
	}
	v.fact("return", explain.Return(s).Words)
	v.fact("warning", explain.Warning(s).Words)
}

func (v *handoffView) result(x *request, ticket string) error {
	result, state, err := x.session.Result(x.Context(), ticket)
	if errors.Is(err, broker.ErrNotFound) {
		if state.Closed {
			v.fact("result", "there is none: "+explain.Ending(state))
		} else {
			v.fact("result", "there is none yet")
		}
		return nil
	}
	if err != nil {
		return err
	}
	v.fact("status", string(result.Status))
	v.fact("summary", result.Summary)
	v.fact("malformed", result.Malformed)
	v.fact("notes", result.Notes)
	var text string
	if json.Unmarshal(result.Body, &text) != nil {
		text = indented(result.Body)
	}
	v.text("", text, "handoff result "+ticket)
	var artifacts []string
	for _, a := range result.Artifacts.All() {
		artifacts = append(artifacts, oneLine(fmt.Sprintf("%v", a.Name)))
	}
	if len(artifacts) > 0 {
		v.Lists = append(v.Lists, list{"Artifacts", artifacts[:min(len(artifacts), 50)]})
	}
	v.fact("late results", explain.LateResults(state).Words)
	return nil
}

func (v *handoffView) audit(x *request, changes []protocol.Change) {
	if len(changes) > auditMax {
		changes = changes[len(changes)-auditMax:]
		v.Cut = "handoff history " + v.State.Ticket
	}
	for _, c := range slices.Backward(changes) {
		for _, e := range c.Record.Events {
			by, words := explain.Event(e)
			v.Audit = append(v.Audit, entry{e.When().In(x.frame.zone).Format("2 Jan 15:04:05"), explain.By(by),
				strings.ReplaceAll(string(e.EventType()), "_", " "), protocol.CutText(oneLine(words), 200), c.Hash[:min(8, len(c.Hash))]})
		}
	}
}

// indented lays JSON out.
func indented(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// stageClass is how a bar is drawn: as waiting in a queue, work, a wait for a person, or a pause.
func stageClass(s protocol.State) string {
	switch lifecycle.StageOf(s) {
	case lifecycle.StageWork:
		return "work"
	case lifecycle.StageAnswers:
		return "wait"
	case lifecycle.StageGate:
		if s.Gate.First() == protocol.GateApproval || s.Gate.First() == protocol.GateBudget {
			return "wait"
		}
		return "queue"
	case lifecycle.StageQueue, lifecycle.StageAcknowledge:
		if s.Agent == protocol.Human {
			return "wait"
		}
		return "queue"
	}
	return "back"
}
