package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

type showOptions struct {
	Full    bool   `flag:"full" doc:"print the bodies of the package and of the result too"`
	Budget  bool   `flag:"budget" doc:"print the usage of it and its family"`
	Context bool   `flag:"context" doc:"print its whole context, also where it went by reference"`
	Section string `flag:"section" doc:"with --context: print this {FIELD} of it alone, such as variables or conversation_history"`
	Brief   bool   `flag:"brief" doc:"print it as instructions for its agent"`
}

func newShow(a *app) *cobra.Command {
	var o showOptions
	cmd := &cobra.Command{
		Use:   "show TICKET",
		Short: "Show one handoff whole: its way, context, budget, brief",
		Long: `Show reads one handoff whole from the ledger: the package, its source and its reason;
which agents had it, and how they were chosen; every attempt, question and answer; the
result, and late ones; the handoffs that belong to it; how long it spent where; and
every event with its author. --full prints the bodies of the package and of the result
too.

--budget prints the tokens and the cost of the handoff, of all handoffs that belong
together with it (handoff tree), and of each agent among them. An agent counts with the
handoffs that it has, or had last. Attempts report their use themselves: with their
results, in HANDOFF_USAGE_FILE, or by "handoff spend".

--context prints the context as JSON, or its --section. If the package was submitted by
reference (submit --transfer reference), the stored context is fetched: the whole
conversation and every other field as submitted, byte for byte. An agent needs the right
to read the package. The URL of a package that belongs to another system is not fetched.

--brief prints Markdown for the agent that works on it: the task, a summary, why this
agent, requirements, the work so far, the last messages, constraints with the rest of time
and budgets, the expected output, and a way on if the work gets stuck. A program of
"handoff work" has it in HANDOFF_BRIEF_FILE, or on its input (work --input brief). Texts of
others are quoted or fenced; values over 4 KiB are cut, and --full has them whole.

With -o json each is one document; of the whole: state, package, entries, way, trail,
routings, attempts, questions, stages_ms, result, late_results, parent, group, children,
return, redriven_as, redrive_of. "goto" is true of a parent or a child with which a chain
goes on, and state.handed_on has its next and its last handoff.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket or section, or the
stored context has expired.`,
		Example: `  handoff show 5f0c…
  handoff show 5f0c… --full | less
  handoff show 5f0c… -o json | jq .attempts
  handoff show 5f0c… --budget -o json | jq .family_used.tokens
  handoff show 5f0c… --context --section conversation_history > talk.json
  handoff show "$HANDOFF_TICKET" --context --gateway`,
		Args:    takes("a TICKET"),
		PreRunE: func(*cobra.Command, []string) error { return o.check(a) },
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Context {
			return a.showContext(cmd, &o, args[0])
		}
		return a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			return a.showOne(ctx, s.session, &o, ticket)
		})(cmd, args)
	}
	bind(cmd.Flags(), &o)
	a.gatewayFlag(cmd)
	return cmd
}

func (o *showOptions) check(a *app) error {
	given := 0
	for _, is := range []bool{o.Full, o.Budget, o.Context, o.Brief} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return usagef("--full, --budget, --context and --brief do not go together")
	case !o.Context && (o.Section != "" || a.through):
		return usagef("--section and --gateway go with --context")
	}
	return nil
}

func (a *app) showOne(ctx context.Context, r dossier.Reader, o *showOptions, ticket string) error {
	switch {
	case o.Budget:
		v, err := dossier.BudgetOf(ctx, r, ticket)
		return printed(a, v, err, a.budget)
	case o.Brief:
		v, err := dossier.InstructionsOf(ctx, r, ticket)
		return printed(a, v, err, func(v dossier.Instructions) error {
			a.printLines(v.Brief)
			return nil
		})
	}
	v, err := dossier.Show(ctx, r, ticket)
	return printed(a, v, err, func(v dossier.Handoff) error { return a.whole(v, o.Full) })
}

func (a *app) showContext(cmd *cobra.Command, o *showOptions, ticket string) error {
	if err := a.throughGateway(cmd); err != nil {
		return err
	}
	return a.onSource(cmd.Context(), ticket, func(ctx context.Context, s *source, ticket string) error {
		whole, err := s.Context(ctx, ticket)
		if err != nil {
			return err
		}
		return a.printContext(whole, o.Section)
	})
}

// budget prints the usage of a family.
func (a *app) budget(b dossier.Budget) error {
	a.fields(
		"used", cmp.Or(explain.Usage(b.Own), "not reported"),
		"limits", b.Left,
		"family", explain.Join(explain.Count(len(b.Handoffs), "handoff"), explain.Usage(b.Family)),
	)
	if err := a.tables(rowsOf("AGENT|HANDOFFS|TOKENS|COST|CALLS", b.Agents, func(of dossier.AgentUsage) []any {
		return append([]any{of.Agent, of.Handoffs}, usageCells(of.Used)...)
	}), rowsOf("HANDOFF|AGENT|PHASE|TOKENS|COST|CALLS", b.Handoffs, func(of dossier.HandoffUsage) []any {
		return append([]any{strings.Repeat("  ", of.Depth) + of.Ticket, of.Agent, explain.Phase(of.State)}, usageCells(of.Used)...)
	})); err != nil {
		return err
	}
	a.remarks(b.Notes, b.Actions)
	return nil
}

func usageCells(u protocol.Usage) []any {
	cells := []any{"-", "-", "-"}
	if u.Tokens > 0 {
		cells[0] = fmt.Sprint(u.Tokens)
	}
	if u.CostMicros > 0 {
		cells[1] = explain.Cost(u.CostMicros)
	}
	if u.Calls > 0 {
		cells[2] = fmt.Sprint(u.Calls)
	}
	return cells
}

// printContext prints a context, or one section of it, as the bytes that it has.
func (a *app) printContext(whole protocol.Context, section string) error {
	body, err := protocol.Marshal(whole)
	if err != nil {
		return err
	}
	if section != "" {
		var sections map[string]json.RawMessage
		if err := json.Unmarshal(body, &sections); err != nil {
			return err
		}
		found, there := sections[section]
		if !there {
			return protocol.Errorf(protocol.CodeNotFound, "section", "%s is not there; the context has %s", protocol.CutText(section, 64),
				strings.Join(slices.Sorted(maps.Keys(sections)), ", "))
		}
		body = found
	}
	return a.body(append(body, '\n'))
}

// printLines prints a text of several lines. Unprintable characters in a line are escaped.
func (a *app) printLines(text string) {
	for line := range strings.Lines(text) {
		a.printf("%s\n", strings.TrimSuffix(line, "\n"))
	}
}

func (s *sheet) kin(v dossier.Handoff) {
	s.section("Belongs to it")
	one := func(label string, k *dossier.Reference) {
		if k != nil {
			s.line(label, k.String())
		}
	}
	if v.Parent != nil && v.Parent.Goto {
		one("handed on by", v.Parent)
	} else {
		one("parent", v.Parent)
	}
	if v.Group != nil && (v.Parent == nil || v.Group.Ticket != v.Parent.Ticket) {
		one("group", v.Group)
	}
	one("return of", v.ReturnOf)
	one("redrive of", v.RedriveOf)
	label := "handed off"
	if v.State.Aggregate != nil {
		label = "member"
	}
	for _, child := range v.Children[:min(len(v.Children), membersShown)] {
		s.line(childLabel(label, child), child.String())
	}
	if more := len(v.Children) - membersShown; more > 0 {
		s.line("", fmt.Sprintf("and %d more: handoff tree %s, or -o json", more, v.Ticket))
	}
	s.chain(v)
	one("return", v.Return)
	if v.Return == nil {
		s.line("return", phrase(explain.OpenReturn(v.State.State, lastOf(v.State.HandedOn))))
	}
	one("redriven as", v.RedrivenAs)
}

func childLabel(label string, child dossier.Reference) string {
	if child.Goto {
		return "handed on"
	}
	return fmt.Sprintf("%s %d", label, child.N)
}

// chain reports the progress of the chain that the handoff began, or is part of.
func (s *sheet) chain(v dossier.Handoff) {
	if c := v.State.HandedOn; c != nil {
		s.line("chain", explain.ChainStands(c.NextState, c.LastState))
		return
	}
	switch {
	case v.Parent == nil || !v.Parent.Goto:
	case v.State.Closed:
		s.line("chain", "ended here")
	default:
		s.line("chain", "still open here")
	}
}

// lastOf is the handoff that a chain has come to; it is zero without one.
func lastOf(c *dossier.Chain) protocol.State {
	if c == nil {
		return protocol.State{}
	}
	return c.LastState
}

// stages is how long it has been where.
func (s *sheet) stages(v dossier.Stages, closed bool) {
	s.section("Time")
	whole := "in all"
	if !closed {
		whole = "so far"
	}
	for _, stage := range []struct {
		label string
		ms    int64
	}{
		{"at a gate", v.Gate}, {"in a queue", v.Queue}, {"claimed", v.Acknowledge}, {"at work", v.Work}, {"for answers", v.Answers}, {"put off", v.Deferred},
		{"for others", v.Children}, {"backing off", v.Backoff}, {"deciding", v.Deciding},
	} {
		if stage.ms > 0 {
			s.line(stage.label, explain.Millis(stage.ms))
		}
	}
	s.line(whole, explain.Millis(v.Whole))
}

// events is the history, with the details under their event where they are long.
func (s *sheet) events(changes []protocol.Change) {
	s.section("Events (UTC)")
	day := ""
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp := at.Format("15:04:05.000")
			if today := at.Format(time.DateOnly); today != day {
				s.item(today)
				day = today
			}
			by, detail := explain.Event(e)
			s.item(fmt.Sprintf("%s %s%s%s", stamp, e.EventType(), explain.After(" by ", explain.By(by)), explain.After(": ", detail)))
		}
	}
}

// bodies are the package and the result as they are.
func (a *app) bodies(v dossier.Handoff) error {
	if len(v.Package) > 0 {
		a.printf("\nPackage\n")
		if err := a.document(v.Package); err != nil {
			return err
		}
	}
	if v.Result == nil {
		return nil
	}
	body, err := json.Marshal(v.Result)
	if err != nil {
		return err
	}
	a.printf("\nWhole result\n")
	return a.document(body)
}

// How "handoff show" reads to people: at 80 columns, in sections, the shortest
// answer first.

func (a *app) whole(v dossier.Handoff, full bool) error {
	s := v.State.State
	sheet := a.newSheet()
	a.headline(s)
	sheet.overview(v)
	sheet.handedOver(v)
	sheet.agents(v)
	sheet.attempts(v)
	sheet.questions(v)
	sheet.results(v)
	sheet.kin(v)
	sheet.stages(v.Stages, s.Closed)
	sheet.events(v.Changes)
	if !full {
		return nil
	}
	return a.bodies(v)
}

func (s *sheet) overview(v dossier.Handoff) {
	state := v.State.State
	if v.Decoded != nil {
		s.line("task", v.Decoded.Task.Description)
	}
	if !state.Closed {
		s.line("waits for", phrase(explain.WaitingFor(state)))
	}
	s.line("ended", explain.Ended(state))
	s.line("stuck", state.StuckReason)
	s.line("from", state.From())
	s.line("to", explain.To(state))
	s.line("group", explain.Join(explain.Group(state), explain.Aggregation(state)))
	s.line("attempt", explain.Attempt(state))
	s.line("progress", explain.Progress(state))
	s.line("escalated", explain.Escalation(state))
	s.line("inbox", phrase(explain.Inbox(state)))
	s.line("used", explain.Usage(state.Usage.Total()))
}

// handedOver is the package, with its context counted.
func (s *sheet) handedOver(v dossier.Handoff) {
	state := v.State.State
	s.section("Handed off")
	s.line("submitted", explain.Instant(state.SubmittedAt))
	s.line("type", string(state.Type))
	s.line("priority", string(state.Priority))
	s.line("deadline", explain.Instant(state.Deadline))
	s.line("workflow", state.WorkflowID)
	s.line("conversation", state.ConversationID)
	s.line("variant", state.Variant)
	s.line("complexity", explain.Complexity(state))
	if v.Decoded == nil {
		s.line("package", "the ledger has it no more")
		return
	}
	for _, fact := range brief.Facts(v.Decoded) {
		s.line(fact.Label, fact.Text)
	}
	var counts []string
	for _, part := range brief.Parts(v.Decoded.Context) {
		counts = append(counts, explain.Count(part.N, part.Thing))
	}
	s.line("context", strings.Join(counts, ", "))
	s.line("size", explain.Count(len(v.Package), "byte"))
}

func (s *sheet) agents(v dossier.Handoff) {
	s.section("Agents")
	for _, way := range v.Hops {
		s.item(fmt.Sprintf("%s %s (%s)", explain.Instant(way.At), way.Agent, strings.ReplaceAll(way.Reason, "_", " ")))
	}
	for _, r := range v.Routings {
		s.item(fmt.Sprintf("%s %s was chosen%s", explain.Instant(r.At), r.Choice.Choice, explain.After(": ", routingWords(r.Choice))))
	}
}

// routingWords lists the candidates of a choice.
func routingWords(r protocol.Routing) string {
	var parts []string
	for _, c := range r.Candidates {
		parts = append(parts, fmt.Sprintf("%s %.2f (%s, %d busy)", c.Agent, c.Score, explain.Count(c.Live, "worker"), c.Busy))
	}
	words := strings.Join(parts, ", ")
	if len(r.Excluded) > 0 {
		words = explain.Join(words, "without "+strings.Join(r.Excluded, " and "))
	}
	return explain.Join(append([]string{words}, r.Warnings...)...)
}

func (s *sheet) attempts(v dossier.Handoff) {
	s.section("Attempts")
	for _, t := range v.Attempts {
		how := fmt.Sprintf("%s after %s%s", t.How, explain.Millis(t.TookMS), explain.After(": ", t.Words))
		if t.Ended.IsZero() {
			how = fmt.Sprintf("goes on, for %s so far", explain.Millis(t.TookMS))
		}
		s.item(fmt.Sprintf("%s %d. at %s, %s: %s", explain.Instant(t.Began), t.N, t.Agent, explain.By(t.Holder), how))
	}
}

func (s *sheet) questions(v dossier.Handoff) {
	s.section("Questions")
	for _, q := range v.Questions {
		if q.Agent != "" {
			s.item(fmt.Sprintf("%s %s asked: %s", explain.Instant(q.At), q.Agent, q.Asks))
		}
		switch {
		case q.Answer != nil:
			s.item(fmt.Sprintf("%s %s answered: %s", explain.Instant(q.Answered), explain.Person(cmp.Or(q.Answer.By, "an authority")), explain.Answer(*q.Answer)))
		case !v.State.Closed:
			s.item("not answered yet")
		default:
			s.item("never answered")
		}
	}
}

// resultShown is how much of a result's text is shown without --full.
const resultShown = 400

func (s *sheet) results(v dossier.Handoff) {
	s.section("Result")
	if r := v.Result; r != nil {
		s.line("status", string(cmp.Or(r.Status, protocol.Success)))
		text, ok := jsonString(r.Body)
		if !ok {
			text = string(r.Body)
		}
		s.line("body", protocol.CutText(text, resultShown))
		s.line("summary", r.Summary)
		s.line("made", explain.Join(countOf(len(r.Artifacts.All()), "artifact"), countOf(len(r.Variables), "changed variable")))
		s.line("iterations", countOf(r.Iterations, "iteration"))
		s.line("notes", r.Notes)
		s.line("malformed", r.Malformed)
		s.line("warning", r.SetAside)
	}
	for _, late := range v.LateResults {
		s.line("late", fmt.Sprintf("%s of attempt %d, at %s: handoff result %s --late", cmp.Or(late.Result.Status, protocol.Success), late.Attempt, explain.Instant(late.At), v.Ticket))
	}
}

// sheetWidth is how wide show writes where it does not know the terminal.
const sheetWidth = 80

// sheet writes sections of lines that are wrapped, never cut.
type sheet struct {
	a     *app
	width int
	title string // of the section, until its first line
}

func (a *app) newSheet() *sheet {
	if a.width > 0 {
		return &sheet{a: a, width: max(a.width, 40)}
	}
	return &sheet{a: a, width: sheetWidth}
}

func (s *sheet) section(title string) { s.title = title }

func (s *sheet) begin() {
	if s.title != "" {
		s.a.printf("\n%s\n", s.title)
		s.title = ""
	}
}

// line writes text under a hanging indent. label precedes its first line.
func (s *sheet) line(label, text string) {
	if text == "" {
		return
	}
	s.begin()
	s.a.hang(fmt.Sprintf("  %-12s ", label), strings.Repeat(" ", 15), text, s.width)
}

// item writes a paragraph of its own, its further lines indented.
func (s *sheet) item(text string) {
	s.begin()
	s.a.hang("  ", "    ", text, s.width)
}

// countOf is count, and nothing of none.
func countOf(n int, thing string) string {
	if n == 0 {
		return ""
	}
	return explain.Count(n, thing)
}
