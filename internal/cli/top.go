package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// topEvery is how often the picture is made anew without --interval.
	topEvery = 2 * time.Second
	// topEveryMin and topEveryMax bound that.
	topEveryMin = 200 * time.Millisecond
	topEveryMax = time.Hour
)

// topOptions are the flags of top.
type topOptions struct {
	Every time.Duration `flag:"interval" doc:"time between two pictures"`
	Once  bool          `flag:"once" doc:"make one picture, and end"`
}

func newTop(a *app) *cobra.Command {
	o := topOptions{Every: topEvery}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch agents, their queues, and handoffs that need attention",
		Long: `Top shows all agents and draws them again every few seconds: whether they are there, how
many workers serve them and how many of their slots are busy, the offers in their queues
by priority (critical/high/normal/low), how long the first that no worker has taken
waits, and how many handoffs they accepted, completed and failed a minute, over the last
minute (up to the last 50,000 entries of the ledger). A refusal, a time-out and a worker
that went are failures, too.

Beneath are open handoffs that need attention:

  stuck      a supervisor could not go on: handoff history TICKET
  deep       it follows from 25 hand-offs or more: handoff tree TICKET
  late       something was due a minute ago and was not done: handoff doctor
  person     it is with a person: handoff inbox
  approval   it waits until it is approved: handoff approve TICKET
  budget     it waits until its limits are raised: handoff raise TICKET
  question   an agent waits for an answer: handoff answer TICKET
  undecided  it failed, was refused or timed out, and nothing has been decided yet
  oldest     open for longest

They come from an index (handoff index; handoff dev has one); without one they are left out.

Schedules and rules are shown if there are any: those that are late, refused or at their
rate first. So are the keys with a limit (handoff limits): the paused ones first, then
those for which most handoffs wait.

On a terminal it is drawn in place, and fits it; q or Ctrl-C ends it. Elsewhere, and with
-o json or jsonl, one picture follows the other. --once makes one and ends.

Exit codes: 0 ended by q, by Ctrl-C on a terminal, or by --once; 130 ended by Ctrl-C
elsewhere; 6 no engine to begin with.`,
		Example: `  handoff top
  handoff top --interval 10s
  handoff top --once -o json | jq -r '.agents[] | select(.queued > 0) | .agent'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Every < topEveryMin || o.Every > topEveryMax {
				return usagef("--interval %s: draw it every %s to %s", explain.Duration(o.Every), explain.Duration(topEveryMin), explain.Duration(topEveryMax))
			}
			return a.top(cmd.Context(), o)
		},
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) top(ctx context.Context, o topOptions) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	watch, err := startTop(ctx, a, b)
	if err != nil {
		return err
	}
	defer watch.stop()
	if o.Once {
		return a.ask(ctx, func(ctx context.Context) error { return a.onePicture(ctx, watch) })
	}
	screen := a.openScreen()
	if screen == nil {
		return topLoop(ctx, o.Every, watch.view, a.topOnce)
	}
	defer func() { err = errors.Join(err, screen.close()) }()
	go func() { // it ends with ctx; a picture under way is let go of
		select {
		case <-screen.ends:
			end()
		case <-ctx.Done():
		}
	}()
	if err := topLoop(ctx, o.Every, watch.view, screen.draw); ctx.Err() == nil {
		return err
	}
	return nil // ended by a signal
}

// onePicture makes a picture, also where the engine does not answer at first.
func (a *app) onePicture(ctx context.Context, watch *topWatch) error {
	for {
		view, err := watch.view(ctx)
		if err == nil {
			return a.topOnce(view)
		}
		if !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(topEveryMin):
		}
	}
}

// topLoop shows one picture after the other until ctx ends. An engine that does not
// answer is part of the picture.
func topLoop(ctx context.Context, every time.Duration, view func(context.Context) (topView, error), show func(topView) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last topView
	for {
		next, err := view(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
			last.Note = "cut off from the engine; the figures are of " + explain.Instant(last.At)
		case err != nil:
			return err
		default:
			last = next
		}
		if err := show(last); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// topView is one picture, for programs.
type topView struct {
	At        time.Time             `json:"at"`
	Served    int                   `json:"served"` // agents that have a worker
	Open      int64                 `json:"open"`   // handoffs; -1 where no index answers
	Rates     rates                 `json:"rates"`
	Agents    []topAgent            `json:"agents"`
	Attention []attention           `json:"attention"`
	People    api.People            `json:"people"`             // the handoffs that wait for a person
	Triggers  *dossier.Triggers     `json:"triggers,omitempty"` // schedules, rules and signals, if there are any
	Limits    []lifecycle.KeyStatus `json:"limits,omitempty"`   // the keys with a limit
	Note      string                `json:"note,omitempty"`     // missing data, and why
}

// people returns in words how many handoffs wait for a person, and since when.
func (v topView) people() string {
	words := explain.ForPerson(v.People.Handoffs, v.People.Since, v.At)
	if v.People.More {
		words = "at least " + words
	}
	if words == "" {
		return ""
	}
	return words + ": handoff inbox"
}

// topAgent is a line about an agent.
type topAgent struct {
	Agent        string           `json:"agent"`
	Availability api.Availability `json:"availability"`
	PolledAt     time.Time        `json:"polled_at,omitzero"` // where it polls: when it was last heard of
	Workers      int              `json:"workers"`
	Slots        int              `json:"slots"`
	Busy         int              `json:"busy"`
	Queued       int              `json:"queued"` // offers, those being worked on included
	Lanes        topLanes         `json:"lanes"`
	Waiting      time.Time        `json:"waiting_since,omitzero"` // the first that no worker has taken
	rates
}

type topLanes struct {
	Critical int `json:"critical"`
	High     int `json:"high"`
	Normal   int `json:"normal"`
	Low      int `json:"low"`
}

func (l *topLanes) add(lane protocol.Priority, n int) {
	switch lane {
	case protocol.Critical:
		l.Critical += n
	case protocol.High:
		l.High += n
	case protocol.Normal:
		l.Normal += n
	case protocol.Low:
		l.Low += n
	}
}

// topAgents puts agents, workers and queues together: those with the most in
// their queues first.
func topAgents(statuses []api.AgentStatus, queues []broker.QueueStatus, rates map[string]rates) []topAgent {
	all := map[string]*topAgent{}
	for _, s := range statuses {
		all[s.ID] = &topAgent{Agent: s.ID, Availability: s.Availability, PolledAt: s.PolledAt,
			Workers: s.Workers, Slots: s.Slots, Busy: s.Busy, rates: rates[s.ID]}
	}
	for _, q := range queues {
		if all[q.Agent] == nil {
			all[q.Agent] = &topAgent{Agent: q.Agent, Availability: "unknown", rates: rates[q.Agent]}
		}
		a := all[q.Agent]
		a.Queued += q.Depth
		a.Lanes.add(q.Lane, q.Depth)
		if !q.Waiting.IsZero() && (a.Waiting.IsZero() || q.Waiting.Before(a.Waiting)) {
			a.Waiting = q.Waiting
		}
	}
	agents := []topAgent{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		agents = append(agents, *all[id])
	}
	slices.SortStableFunc(agents, func(a, b topAgent) int {
		return cmp.Or(cmp.Compare(b.Queued, a.Queued), cmp.Compare(b.Busy, a.Busy), cmp.Compare(b.Workers, a.Workers))
	})
	return agents
}

// attention is an open handoff that needs a person.
type attention struct {
	Why         api.Need  `json:"why"`
	Ticket      string    `json:"ticket"`
	Agent       string    `json:"agent"`
	SubmittedAt time.Time `json:"submitted_at"`
	Words       string    `json:"words"` // the event that it waits for

	text string // the same without commands
}

func topAttention(needs []api.Attended) []attention {
	all := []attention{}
	for _, n := range needs {
		all = append(all, attention{Why: n.Need, Ticket: n.State.Ticket, Agent: n.State.Agent, SubmittedAt: n.State.SubmittedAt, Words: phrase(n.Words), text: n.Words.Words})
	}
	return all
}

// topWatch holds the sources of a picture.
type topWatch struct {
	api       *api.Session
	connected func() bool // to the engine
	seen      *topRates
	stop      func() // ends the tasks in the background, and waits for them
}

// topAsker asks no index for a while after none has answered: that takes
// topIndexWithin each time.
type topAsker struct {
	asker
	silentSince time.Time
}

func (t *topAsker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if time.Since(t.silentSince) < noIndexFor {
		return nil, broker.ErrNoAnswer
	}
	answer, err := t.asker.Ask(ctx, verb, question)
	if errors.Is(err, broker.ErrNoAnswer) {
		t.silentSince = time.Now()
	}
	return answer, err
}

// topIndexWithin is how long a picture waits for one answer of an index.
const topIndexWithin = 2 * time.Second

// noIndexFor is how long no index is asked after none has answered.
const noIndexFor = 15 * time.Second

// startTop begins to follow the ledger, a minute back.
func startTop(ctx context.Context, a *app, b *broker.Broker) (*topWatch, error) {
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return nil, err
	}
	index := ask.Client{Asker: &topAsker{asker: asker{engine: b, timeout: topIndexWithin}}}
	w := &topWatch{api: api.New(b, api.Config{Index: index}).As(api.Local(a.me())), connected: a.engine.Conn().IsConnected}
	if _, err := w.api.Agents(ctx); err != nil { // its watch begins
		return nil, err
	}
	now := time.Now()
	from, err := b.Since(ctx, now.Add(-rateWindow))
	if err != nil {
		return nil, err
	}
	covers := now.Add(-rateWindow)
	for p, part := range ledger.Partitions() {
		if from.Next(p)+ratesBack < part.Last {
			from[p], covers = part.Last-ratesBack, time.Time{} // the first entry is the beginning
		}
	}
	w.seen = newTopRates(covers, ledger.Behind(from))
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		_ = followLedger(ctx, b, ledger, from, func(string) {}, w.seen.take) // it ends with ctx; a cut shows in the picture itself
	})
	w.stop = func() { cancel(); following.Wait() }
	return w, w.seen.caughtUp(ctx)
}

// viewWithin is how long one picture may take.
const viewWithin = 5 * time.Second

func (w *topWatch) view(ctx context.Context) (topView, error) {
	ctx, cancel := context.WithTimeout(ctx, viewWithin)
	defer cancel()
	if !w.connected() { // no need to wait for an answer
		return topView{}, broker.ErrUnreachable
	}
	agents, err := w.api.Agents(ctx)
	if err != nil {
		return topView{}, err
	}
	queues, err := w.api.Queues(ctx)
	if err != nil {
		return topView{}, err
	}
	now := time.Now().UTC()
	v := topView{At: now}
	all, byAgent := w.seen.now(now)
	v.Rates, v.Agents = all, topAgents(agents, queues, byAgent)
	for _, a := range v.Agents {
		if a.Workers > 0 {
			v.Served++
		}
	}
	if v.Triggers, err = dossier.ReadTriggers(ctx, w.api, now); err != nil && !errors.Is(err, broker.ErrNotAllowed) {
		return topView{}, err
	}
	if v.Limits, err = readKeys(ctx, w.api); err != nil {
		return topView{}, err
	}
	needs, err := w.api.Attention(ctx, w.seen.noticedTickets())
	switch {
	case errors.Is(err, broker.ErrNoAnswer):
		v.Note = "no index answers, so that handoffs which need attention are not shown; start one: handoff index"
	case err != nil:
		return topView{}, err
	case !needs.Complete:
		v.Note = "the index is catching up: more handoffs may need attention than are shown"
	}
	v.Open, v.People, v.Attention = needs.Open, needs.People, topAttention(needs.Handoffs)
	return v, nil
}

const (
	// rateWindow is the time that rates are of: the last minute.
	rateWindow = time.Minute
	// ratesBack is how many earlier entries top reads at most: a second of work or two.
	ratesBack = 50_000
)

// rates are handoffs a minute.
type rates struct {
	Accepted  float64 `json:"accepted_per_minute"`
	Completed float64 `json:"completed_per_minute"`
	Failed    float64 `json:"failed_per_minute"` // attempts that failed, refusals, time-outs, workers that went
}

// topRates counts events by second and agent, for as long as rateWindow.
type topRates struct {
	mu      sync.Mutex
	since   time.Time                  // the ledger has been read from then on; zero: from the first entry on
	ahead   uint64                     // entry up to which the past is being read
	caught  chan struct{}              // closed when that is done
	bySec   map[int64]map[string]tally // Unix seconds
	noticed []string                   // tickets that got stuck meanwhile, or are deep in their lineages
}

// newTopRates counts from an instant on, and has caught up with so many entries.
func newTopRates(since time.Time, past uint64) *topRates {
	r := &topRates{since: since, ahead: past, caught: make(chan struct{}), bySec: map[int64]map[string]tally{}}
	if past == 0 {
		close(r.caught)
	}
	return r
}

// catchUpWithin is how long the first picture waits for earlier entries.
const catchUpWithin = 3 * time.Second

// caughtUp waits until the past has been read, a moment at most: an entry of
// before may have been the last one in a long time.
func (r *topRates) caughtUp(ctx context.Context) error {
	patient := time.NewTimer(catchUpWithin)
	defer patient.Stop()
	select {
	case <-r.caught:
	case <-patient.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take counts one entry of the ledger.
func (r *topRates) take(e broker.Entry) error {
	change, err := broker.DecodeChange(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.since.IsZero() {
		r.since = e.At
	}
	if r.ahead > 0 {
		if r.ahead--; r.ahead == 0 {
			close(r.caught)
		}
	}
	if err != nil {
		return nil // doctor reports those
	}
	second := e.At.Unix()
	if lifecycle.Deep(change.Record.State.Summary) {
		r.notice(e.Ticket)
	}
	for _, event := range change.Record.Events {
		agent, t := tallyOf(event, change.Record.State)
		if t == (tally{}) {
			if event.EventType() == protocol.EventStuck {
				r.notice(e.Ticket)
			}
			continue
		}
		if r.bySec[second] == nil {
			r.bySec[second] = map[string]tally{}
			r.forget(second)
		}
		sum := r.bySec[second][agent]
		sum.add(t)
		r.bySec[second][agent] = sum
	}
	return nil
}

// forget drops counts older than the window by the ledger's own time.
func (r *topRates) forget(second int64) {
	for old := range r.bySec {
		if old < second-2*int64(rateWindow/time.Second) {
			delete(r.bySec, old)
		}
	}
}

// now are the rates of the window, or since the ledger is read: of all, and by agent.
func (r *topRates) now(now time.Time) (all rates, by map[string]rates) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := now.Add(-rateWindow)
	if r.since.After(begin) {
		begin = r.since
	}
	minutes := max(now.Sub(begin), time.Second).Minutes()
	var total tally
	sums := map[string]tally{}
	for second, agents := range r.bySec {
		if second < begin.Unix() {
			continue
		}
		for agent, t := range agents {
			sum := sums[agent]
			sum.add(t)
			sums[agent] = sum
			total.add(t)
		}
	}
	by = make(map[string]rates, len(sums))
	for agent, sum := range sums {
		by[agent] = sum.rates(minutes)
	}
	return total.rates(minutes), by
}

func (t tally) rates(minutes float64) rates {
	return rates{float64(t.accepted) / minutes, float64(t.completed) / minutes, float64(t.failed) / minutes}
}

// tally counts the events of one second.
type tally struct{ accepted, completed, failed int }

func (t *tally) add(o tally) {
	t.accepted += o.accepted
	t.completed += o.completed
	t.failed += o.failed
}

// tallyOf returns the count of an event, and its agent.
func tallyOf(event protocol.Event, after protocol.State) (agent string, t tally) {
	switch event.EventType() {
	case protocol.EventAccepted:
		t.accepted = 1
	case protocol.EventCompleted:
		t.completed = 1
	case protocol.EventRejected, protocol.EventTimedOut, protocol.EventFailed, protocol.EventLeaseLost:
		t.failed = 1
	}
	o := protocol.OutlineOf(event)
	return cmp.Or(o.To, o.Agent, after.Agent), t
}

// noticedMax is how many handoffs are remembered that need a person.
const noticedMax = 100

// notice remembers a handoff that needs a person: the last of them. The caller has the lock.
func (r *topRates) notice(ticket string) {
	if slices.Contains(r.noticed, ticket) {
		return
	}
	if len(r.noticed) == noticedMax {
		r.noticed = r.noticed[1:]
	}
	r.noticed = append(r.noticed, ticket)
}

// noticedTickets are the handoffs that got stuck, or too deep, while top was watching.
func (r *topRates) noticedTickets() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.noticed)
}

// topOnce prints a picture.
func (a *app) topOnce(v topView) error {
	if !a.text() {
		return a.value(v)
	}
	for _, line := range a.topLines(v, a.fitTo(), 0) {
		a.printf("%s\n", styled(line))
	}
	return nil
}

// topLines are a picture as text: at most so wide and so high, where these are
// not 0. Every line is safe for a terminal.
func (a *app) topLines(v topView, width, height int) []string {
	head := fmt.Sprintf("%s  %s, %d served  %d open  per minute: %s accepted, %s completed, %s failed",
		explain.Instant(v.At), explain.Count(len(v.Agents), "agent"), v.Served, v.Open, rate(v.Rates.Accepted), rate(v.Rates.Completed), rate(v.Rates.Failed))
	if v.Open < 0 {
		head = strings.Replace(head, "  -1 open", "", 1)
	}
	fit := func(text string) string {
		if text = protocol.Printable(text); width > 0 {
			text = cutColumns(text, width)
		}
		return text
	}
	lines := []string{head}
	if width > 0 && columnsOf(head) > width {
		lines = wrapColumns(head, width)
	}
	if words := v.people(); words != "" {
		lines = append(lines, string(a.coloured(amber, fit(words))))
	}
	if v.Note != "" {
		lines = append(lines, fit(v.Note))
	}
	if words := v.Triggers.Signals(); words != "" {
		lines = append(lines, fit(words))
	}
	attention := a.linesOf(attentionRows(v, width), width)
	triggers, limits := a.linesOf(triggerRows(v.Triggers, v.At), width), a.linesOf(keyRows(v.Limits), width)
	agents := []string{fit(noAgents)}
	if len(v.Agents) > 0 {
		agents = a.agentLines(v, width)
	}
	if height > 0 {
		// Handoffs that need attention get up to half of the rows left.
		left := height - len(lines) - 2 // empty ones
		if triggers = cutLines(triggers, left/4, "more schedules and rules"); len(triggers) > 0 {
			left -= len(triggers) + 1
		}
		if limits = cutLines(limits, left/4, "more keys: handoff limits"); len(limits) > 0 {
			left -= len(limits) + 1
		}
		most := max(left/2, left-len(agents))
		attention = cutLines(attention, most, "more need attention")
		agents = cutLines(agents, left-len(attention), "more agents")
	}
	for _, part := range [][]string{agents, limits, triggers, attention} {
		if len(part) > 0 {
			lines = append(append(lines, ""), part...)
		}
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

// cutLines keeps so many lines of a table, and counts the rest in its last one.
func cutLines(lines []string, most int, what string) []string {
	most = max(most, 0)
	if len(lines) <= most {
		return lines
	}
	if most < 3 {
		return lines[:most]
	}
	return append(lines[:most-1:most-1], fmt.Sprintf("… %d %s", len(lines)-most+1, what))
}

func (app *app) agentLines(v topView, width int) []string {
	rows := rowsOf("AGENT|IS|WORKERS|BUSY|QUEUED|"+lanesHead+"|WAITS|ACCEPTED|DONE|FAILED/MIN", v.Agents, func(a topAgent) []any {
		lanes := "-"
		if a.Queued > 0 {
			lanes = fmt.Sprintf("%d/%d/%d/%d", a.Lanes.Critical, a.Lanes.High, a.Lanes.Normal, a.Lanes.Low)
		}
		is := string(a.Availability)
		if a.Availability == api.Polling {
			is = explain.Polls(a.PolledAt, v.At)
		}
		return []any{a.Agent, is, a.Workers, fmt.Sprintf("%d/%d", a.Busy, a.Slots), a.Queued, lanes, explain.Ago(a.Waiting, v.At),
			rate(a.Accepted), rate(a.Completed), rate(a.Failed)}
	})
	lines := app.tableLines(rows, width)
	if strings.Contains(lines[0], lanesHead) && slices.ContainsFunc(v.Agents, func(a topAgent) bool { return a.Queued > 0 }) {
		words := lanesWords
		if width > 0 {
			words = cutColumns(words, width)
		}
		lines = append(lines, string(app.coloured(faint, words)))
	}
	return lines
}

const noAgents = "no agents yet; start one: handoff work --agent NAME -- CMD"

// The column of the lanes, and its legend.
const (
	lanesHead  = "C/H/N/L"
	lanesWords = "C/H/N/L: queued with priority critical/high/normal/low"
)

func attentionRows(v topView, width int) [][]string {
	return rowsOf("WHY|TICKET|AGENT|AGE|WAITS FOR", v.Attention, func(t attention) []any {
		words := t.Words
		if width > 0 { // the commands are in the inbox and in why
			words = cmp.Or(t.text, words)
		}
		return []any{t.Why, t.Ticket, t.Agent, explain.Ago(t.SubmittedAt, v.At), words}
	})
}

// linesOf are the lines of a table; none if it has no row.
func (a *app) linesOf(rows [][]string, width int) []string {
	if len(rows) < 2 {
		return nil
	}
	return a.tableLines(rows, width)
}

// triggerRows is the table of schedules and rules; none if there are none.
func triggerRows(t *dossier.Triggers, now time.Time) [][]string {
	if t == nil {
		return nil
	}
	return rowsOf("BEGINS BY|NEXT|LAST|IS", t.All, func(t explain.Trigger) []any {
		next := cmp.Or(explain.Instant(t.Next), "-")
		if t.Kind() == "rule" {
			next = t.On
		}
		return []any{t.From, next, cmp.Or(explain.Ago(t.LastAt, now), "-"), cmp.Or(t.Words(explain.Instant), "ok")}
	})
}

// rate writes a number of things a minute, as short as a table wants it.
func rate(perMinute float64) string {
	if perMinute >= 10 {
		return fmt.Sprintf("%.0f", perMinute)
	}
	return explain.Number(perMinute)
}

// Commands of a terminal. A frame is drawn over the last one, each line cleared behind its end, so
// that nothing flickers.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // a page of our own, without a cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	frameBegin  = "\x1b[H"
	lineEnd     = "\x1b[K\r\n"
	frameEnd    = "\x1b[J"
)

// screen is a terminal that top draws on.
type screen struct {
	out  *os.File
	in   *os.File // with raw keys, if it is a terminal too
	was  *term.State
	ends chan struct{} // closed when a key ends it

	fit func(v topView, width, height int) []string
}

// openScreen takes the terminal, if text goes to one; else it is nil.
func (a *app) openScreen() *screen {
	out, ok := a.out.(*os.File)
	if !ok || !a.terminal || !a.text() || a.env("TERM") == "dumb" {
		return nil
	}
	s := &screen{out: out, ends: make(chan struct{}), fit: a.topLines}
	if in, ok := a.in.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		if was, err := term.MakeRaw(int(in.Fd())); err == nil {
			s.in, s.was = in, was
			// Nothing can call back a read of a terminal: this ends with the process.
			go func() { watchKeys(in, s.ends) }()
		}
	}
	_, _ = io.WriteString(out, screenOpen) // the first frame would fail as well, with an error
	return s
}

// close gives the terminal back as it was.
func (s *screen) close() error {
	_, err := io.WriteString(s.out, screenClose)
	if s.was != nil {
		err = errors.Join(err, term.Restore(int(s.in.Fd()), s.was))
	}
	return err
}

// draw shows a picture, fit to the terminal as it is at this moment.
func (s *screen) draw(v topView) error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	_, err = io.WriteString(s.out, frame(s.fit(v, width, height)))
	return err
}

// frame is one drawing, in one write. The last line has no line end: it would
// move everything up.
func frame(lines []string) string {
	return frameBegin + strings.Join(lines, lineEnd) + "\x1b[K" + frameEnd
}

// watchKeys closes ends at q or Q, at Ctrl-C and Ctrl-D (which a raw terminal makes
// keys like others), and if no keys are left.
func watchKeys(in io.Reader, ends chan<- struct{}) {
	defer close(ends)
	const ctrlC, ctrlD = 3, 4
	key := make([]byte, 1)
	for {
		if _, err := in.Read(key); err != nil {
			return
		}
		switch key[0] {
		case 'q', 'Q', ctrlC, ctrlD:
			return
		}
	}
}
