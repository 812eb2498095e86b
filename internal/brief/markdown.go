package brief

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// iterationsDefault is the number of iterations in a brief whose package has no limit.
const iterationsDefault = 15

// messagesMax bounds the messages that a brief quotes; it quotes the last ones.
const messagesMax = 5

// Markdown returns a handoff as instructions for the agent that works on it: the task, the work
// done so far, the known facts, the limits, and advice for an agent that gets stuck. Its sections
// follow the order of the template. Text of other authors is quoted, so that it cannot form a
// section. Values over 4 KiB are cut; the package has all of them.
func Markdown(p *protocol.Package, s protocol.State, since Since) string {
	w := &writer{}
	w.printf("You are %s. %s hands this work to you; its ticket is %s.\n", cmp.Or(s.Agent, p.Target.String()), p.Source, s.Ticket)
	w.section("Task")
	w.quote(p.Task.Description)
	w.summary(p)
	w.why(p)
	w.specific(p, since)
	w.completed(p, since)
	w.messages(p.Context.ConversationHistory)
	w.key(&p.Context, since)
	w.constraints(p, s)
	w.expected(p)
	w.section("Success Criteria")
	w.list(p.Expectations.SuccessCriteria)
	w.otherwise("The task is done, and its output is complete.")
	w.stuck(p)
	return w.text.String()
}

// writer writes sections. It puts a blank line after a quotation.
type writer struct {
	text  strings.Builder
	begun int  // where the current section's text begins
	apart bool // a blank line comes before the next text
}

func (w *writer) write(text string) {
	if w.apart {
		w.text.WriteString("\n")
		w.apart = false
	}
	w.text.WriteString(text)
}

func (w *writer) printf(format string, a ...any) { w.write(fmt.Sprintf(format, a...)) }
func (w *writer) item(label, text string)        { w.labelled(label, oneLine(cut(text))) }

// quote quotes the text of another author, with blank lines around it.
func (w *writer) quote(text string) {
	w.apart = w.apart || w.text.Len() > w.begun
	w.write(quoted(cut(text)))
	w.apart = true
}

func (w *writer) section(name string) {
	w.apart = w.text.Len() > 0
	w.printf("## %s\n\n", name)
	w.begun = w.text.Len()
}

// otherwise writes the text of a section that is empty.
func (w *writer) otherwise(words string) {
	if w.text.Len() == w.begun {
		w.write(words + "\n")
	}
}

// labelled writes a line of a list, unless the text is empty.
func (w *writer) labelled(label, text string) {
	switch {
	case text == "":
	case label == "":
		w.printf("- %s\n", text)
	default:
		w.printf("- %s: %s\n", label, text)
	}
}

func (w *writer) list(texts []string) {
	for _, text := range texts {
		w.item("", text)
	}
}

func (w *writer) values(label string, list []json.RawMessage) {
	for _, raw := range list {
		w.item(label, value(raw))
	}
}

func (w *writer) summary(p *protocol.Package) {
	c := &p.Context
	w.section("Context Summary")
	if request := cmp.Or(c.OriginalRequest, deref(c.UserIntent)); request != "" {
		w.write("Original request:\n")
		w.quote(request)
	}
	w.values("Done", c.CompletedSteps)
	w.item("Current state", c.Phase)
	w.values("Still to be done", c.RemainingSteps)
	if c.Summary != "" {
		w.quote(c.Summary)
	}
	w.otherwise("There is none: the task is all that was handed over.")
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func (w *writer) why(p *protocol.Package) {
	w.section("Why You")
	w.quote(p.Reason)
	if len(p.RequiredCapabilities) == 0 {
		return
	}
	w.section("Required Capabilities")
	for _, c := range p.RequiredCapabilities {
		w.item("", c.ID)
	}
}

func (w *writer) specific(p *protocol.Package, since Since) {
	w.section("Your Specific Task")
	w.write("Do the task above, and nothing beyond it.\n")
	if len(p.Task.Requirements) > 0 {
		w.write("The work must meet:\n\n")
		w.list(p.Task.Requirements)
	}
	for _, answer := range since.Answers {
		w.apart = true
		w.printf("%s answered the question.\n", cmp.Or(oneLine(answer.By), "The source"))
		if answer.Text != "" {
			w.quote(answer.Text)
		}
		if answer.Permit {
			w.write("- You are permitted to do it.\n")
		}
		w.variables(answer.Variables)
	}
}

func (w *writer) completed(p *protocol.Package, since Since) {
	c := &p.Context
	if c.Previous == nil && len(c.IntermediateResults) == 0 && len(since.Returns) == 0 && len(since.Trail) == 0 {
		return
	}
	w.section("Work Completed So Far")
	if before := c.Previous; before != nil {
		w.printf("%s, who had it before you (%s):\n", oneLine(before.Agent), oneLine(before.Ticket))
		w.quote(cmp.Or(before.Summary, value(before.Body), "a result of "+protocol.Size(before.BodyBytes)+"; read it by the ticket"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.IntermediateResults)) {
		w.item(oneLine(name), value(c.IntermediateResults[name]))
	}
	for _, r := range since.Returns {
		w.apart = w.text.Len() > w.begun
		w.printf("%s, which you have asked (%s), ended with %s:\n", r.FromAgent, r.HandoffID, cmp.Or(string(r.Outcome), string(r.Status)))
		text := r.Message
		if r.Result != nil {
			text = cmp.Or(value(r.Result.Body), r.Result.Summary, text)
		}
		w.quote(cmp.Or(text, "nothing more"))
	}
	for _, e := range since.Trail {
		words := cmp.Or(e.Words, e.Code)
		if e.Progress != nil {
			words = fmt.Sprintf("%s; its last report: %.0f%% %s", words, e.Progress.Percent, e.Progress.Message)
		}
		w.item(oneLine(string(e.Event)+" "+e.Agent), words)
	}
}

func (w *writer) messages(history []protocol.Message) {
	if len(history) == 0 {
		return
	}
	w.section("Recent Conversation")
	last := history[max(0, len(history)-messagesMax):]
	if n := len(history) - len(last); n > 0 {
		w.printf("The last %d of %d messages; the package has all of them.\n", len(last), len(history))
		w.apart = true
	}
	for _, message := range last {
		speaker, words := Message(message)
		w.printf("%s:\n", oneLine(speaker))
		w.quote(words)
	}
}

func (w *writer) key(c *protocol.Context, since Since) {
	w.section("Key Information")
	w.list(c.KeyPoints)
	for _, d := range c.Decisions {
		because := ""
		if d.Rationale != "" {
			because = ", because " + d.Rationale
		}
		w.item("Decided", d.Description+because)
	}
	w.variables(c.Variables)
	if since.Shared != nil {
		w.variables(since.Shared.Variables)
	}
	for _, a := range c.Artifacts.All() {
		w.item("Artifact", strings.Join(slices.DeleteFunc([]string{a.Name, a.Path, a.Status, a.Description}, func(s string) bool { return s == "" }), ", "))
	}
	for _, f := range c.RelevantFiles {
		w.item("Read first", strings.Join(append([]string{f.Path}, f.Sections...), ", "))
	}
	w.item("The rest of the context", restOf(c.ContextURL))
	w.otherwise("There is none beyond the task.")
}

func (w *writer) variables(all map[string]json.RawMessage) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		w.item(oneLine(name), value(all[name]))
	}
}

// restOf returns the URL of the rest of a context, with a hint how to read it.
func restOf(url string) string {
	if _, ours := protocol.ParseContextURL(url); ours {
		return url + " (the whole context is read by the ticket)"
	}
	return url
}
