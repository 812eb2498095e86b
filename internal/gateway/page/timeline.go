package page

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// timeline is the course of a handoff: a line for each agent and attempt, to one scale.
type timeline struct {
	Lines    []line
	Ticks    []tick
	Reports  int    // of progress
	Folded   bool   // some waits are shorter than to scale
	Scale    bool   // the viewer asked for the scale
	Past     bool   // later changes are missing
	Shown    int    // changes
	Earlier  int    // lines that are not shown
	ToScale  string // the other drawing
	Duration string
}

// line is one attempt of an agent.
type line struct {
	Agent, Small string
	Bars         []span
	Notes        []note
}

// span is a bar, in percent of the whole.
type span struct {
	Class   string
	X, Wide string
	Words   string

	from, to time.Time
}

// note is an event on a line, in words.
type note struct {
	mark
	Words  string
	Indent int // in steps of 5 percent
	at     time.Time
}

type tick struct {
	X, Anchor, Words string
}

const (
	linesMax   = 40
	foldBeyond = 0.25 // of the whole: a longer wait is folded
	foldedTo   = 0.2  // of the rest
)

// tickets are cut to their beginning in the words of a note.
var tickets = regexp.MustCompile(`\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)

// The words behind the mark of a note.
const (
	reasonWords = iota // the reason, for people or else for programs
	noWords
	codeWords   // the reason for programs
	detailWords // the event in words
	byWords     // its author
)

// notices are the events that a reader of the timeline wants to see. {by} is the author of one, {to} the agent that it names.
var notices = map[protocol.EventType]struct {
	mark
	words int
}{
	protocol.EventRejected:        {mark{"⇄", "refused", "rest"}, reasonWords},
	protocol.EventFailed:          {mark{"✕", "failed", "bad"}, reasonWords},
	protocol.EventLeaseLost:       {mark{"✕", "its worker stopped answering", "bad"}, noWords},
	protocol.EventTimedOut:        {mark{"✕", "ran out of time", "bad"}, codeWords},
	protocol.EventConditioned:     {mark{"◆", "asks", "person"}, reasonWords},
	protocol.EventAnswered:        {mark{"✓", "answered by {by}", "ok"}, detailWords},
	protocol.EventEscalated:       {mark{"▲", "goes up to {to}", "person"}, reasonWords},
	protocol.EventReleased:        {mark{"○", "given back", "rest"}, reasonWords},
	protocol.EventApproved:        {mark{"✓", "approved by {by}", "ok"}, noWords},
	protocol.EventDenied:          {mark{"✕", "denied by {by}", "bad"}, reasonWords},
	protocol.EventGated:           {mark{"▣", "needs approval", "person"}, noWords},
	protocol.EventRerouted:        {mark{"⇄", "goes to {to}", "rest"}, reasonWords},
	protocol.EventTaken:           {mark{"●", "taken by {by}", "run"}, noWords},
	protocol.EventCompleted:       {mark{"✓", "done", "ok"}, noWords},
	protocol.EventHandedOff:       {mark{"→", "hands off", "rest"}, detailWords},
	protocol.EventCancelRequested: {mark{"⊘", "is to stop", "rest"}, byWords},
	protocol.EventRolledBack:      {mark{"⊘", "is to stop", "rest"}, byWords},
}

// noteOf is the note of an event, if it has one.
func noteOf(e protocol.Event) (note, bool) {
	o := protocol.OutlineOf(e)
	notice, shown := notices[e.EventType()]
	if !shown || e.EventType() == protocol.EventGated && o.Gate != protocol.GateApproval {
		return note{}, false
	}
	words, by := cmp.Or(o.Words, o.Code), explain.By(e.Author())
	switch notice.words {
	case noWords:
		words = ""
	case codeWords:
		words = o.Code
	case detailWords:
		_, detail := explain.Event(e)
		words = cmp.Or(detail, words)
	case byWords:
		words = "by " + by
	}
	if c, is := e.(*protocol.Conditioned); is {
		if needs := slices.Concat(c.NeedsContext, c.NeedsPermission); len(needs) > 0 {
			words = strings.Join(needs, "; ")
		} else {
			notice.mark = mark{"‖", "put off", "rest"}
		}
	}
	if o.Suggests != "" {
		words += ", suggests " + o.Suggests
	}
	notice.Word = strings.NewReplacer("{by}", by, "{to}", explain.Person(o.To)).Replace(notice.Word)
	words = tickets.ReplaceAllString(protocol.CutText(oneLine(words), 300), "$1")
	return note{mark: notice.mark, Words: words, at: e.When()}, true
}

// timeline draws the changes of a handoff. Those before the last 40 lines are counted.
func (x *request) timeline(state protocol.State, changes []protocol.Change, past bool) *timeline {
	if len(changes) == 0 {
		return nil
	}
	t := &timeline{Past: past, Shown: len(changes), Scale: x.URL.Query().Get("scale") == "1"}
	var now line
	var ended bool // the attempt of this line, or its agent's turn
	for i, c := range changes {
		s := c.Record.State
		agent, class := cmp.Or(s.Agent, s.TargetWords()), stageClass(s)
		deciding := lifecycle.StageOf(s) == lifecycle.StageDeciding
		var ends bool
		for _, e := range c.Record.Events {
			if e.EventType() == protocol.EventProgressed {
				t.Reports++
			}
			ends = ends || protocol.OutlineOf(e).Ends != ""
			n, shown := noteOf(e)
			if last := len(now.Notes) - 1; shown && last >= 0 && e.EventType() == protocol.EventRerouted && now.Notes[last].Word == "refused" {
				continue // the refusal has the same words
			}
			if shown {
				now.Notes = append(now.Notes, n) // it is about the agent that had it
			}
		}
		if now.Agent != "" && !s.Closed && (now.Agent != agent || ended && !deciding) {
			t.Lines = append(t.Lines, now)
			ends = ends && now.Agent == agent // with another agent, it is the turn before that ended
			now, ended = line{}, false
		}
		ended = ends || ended && deciding
		if now.Agent == "" {
			now.Agent, now.Small = agent, reasonOf(c, state)
		}
		if s.Fence != 0 {
			now.Small = fmt.Sprintf("attempt %d", max(s.Attempt, 1))
		}
		until := x.frame.now
		if i+1 < len(changes) {
			until = dossier.EventsAt(changes[i+1])
		} else if past {
			until = dossier.EventsAt(c)
		}
		if s.Closed || !until.After(dossier.EventsAt(c)) {
			continue
		}
		if n := len(now.Bars); n > 0 && (now.Bars[n-1].Class == class || deciding) {
			now.Bars[n-1].to = until
		} else {
			now.Bars = append(now.Bars, span{Class: class, from: dossier.EventsAt(c), to: until})
		}
	}
	t.Lines = append(t.Lines, now)
	t.Earlier = max(0, len(t.Lines)-linesMax)
	t.Lines = t.Lines[t.Earlier:]
	t.scale(x, state)
	return t
}

// reasonOf returns why an agent has a handoff that it has not begun.
func reasonOf(c protocol.Change, state protocol.State) string {
	for _, e := range c.Record.Events {
		switch o := protocol.OutlineOf(e); e.EventType() {
		case protocol.EventSubmitted:
			return "choice of " + explain.Person(state.Source)
		case protocol.EventRerouted:
			return "instead of " + explain.Person(o.From)
		case protocol.EventEscalated:
			return "above " + explain.Person(o.From)
		}
	}
	return ""
}

// piece is a part of the axis: an interval of time, and its share of the width.
type piece struct {
	from, to time.Time
	wide     float64
	x        float64
	folded   bool
}

// scale gives each bar its place. A wait that is longer than a quarter of the whole is folded, unless the
// viewer asks for the scale.
func (t *timeline) scale(x *request, state protocol.State) {
	var pieces []piece
	for _, l := range t.Lines {
		for _, b := range l.Bars {
			pieces = append(pieces, piece{from: b.from, to: b.to, wide: max(b.to.Sub(b.from).Seconds(), 0.001), folded: b.Class != "work"})
		}
	}
	if len(pieces) == 0 {
		return
	}
	begun := pieces[0].from
	whole := 0.0
	for _, p := range pieces {
		whole += p.wide
	}
	t.Duration = explain.Spoken(pieces[len(pieces)-1].to.Sub(begun))
	rest := whole
	for i := range pieces {
		p := &pieces[i]
		if p.folded = p.folded && len(pieces) > 1 && p.wide > foldBeyond*whole; p.folded {
			t.Folded, rest = true, rest-p.wide
		}
	}
	total, px := 0.0, 0.0
	for i := range pieces {
		p := &pieces[i]
		if p.folded = p.folded && !t.Scale; p.folded {
			p.wide = max(foldedTo*rest, 0.001)
		}
		total += p.wide
	}
	for i := range pieces {
		pieces[i].wide *= 100 / total
		pieces[i].x = px
		px += pieces[i].wide
	}
	place := func(at time.Time) float64 {
		for _, p := range pieces {
			if !at.After(p.to) {
				share := at.Sub(p.from).Seconds() / max(p.to.Sub(p.from).Seconds(), 0.001)
				return p.x + p.wide*min(1, max(0, share))
			}
		}
		return 100
	}
	for i := range t.Lines {
		l := &t.Lines[i]
		for j := range l.Bars {
			b := &l.Bars[j]
			from, to := place(b.from.Add(time.Nanosecond)), place(b.to)
			b.X, b.Wide = fmt.Sprintf("%.2f%%", from), fmt.Sprintf("%.2f%%", max(0.4, min(to, 100)-from))
			b.Words = map[string]string{"queue": "in the queue", "work": "working", "wait": "waiting for a person", "back": "pausing"}[b.Class] + " for " + explain.Spoken(b.to.Sub(b.from))
		}
		for j := range l.Notes {
			l.Notes[j].Indent = min(10, int(place(l.Notes[j].at)/5)) * 5
		}
	}
	t.ticks(x, pieces, state)
}

func (t *timeline) ticks(x *request, pieces []piece, state protocol.State) {
	format := "15:04"
	if last := pieces[len(pieces)-1].to; last.Sub(pieces[0].from) < 10*time.Minute {
		format = "15:04:05"
	} else if last.Sub(pieces[0].from) > 24*time.Hour {
		format = "2 Jan 15:04"
	}
	t.Ticks = []tick{{"0%", "start", pieces[0].from.In(x.frame.zone).Format(format)}}
	taken := 16.0
	for _, p := range pieces {
		words, at := p.from.In(x.frame.zone).Format(format), p.x
		if p.folded {
			words, at = "⟨ "+explain.Spoken(p.to.Sub(p.from))+" ⟩", p.x+p.wide/2
		}
		if at < taken || at > 82 {
			continue
		}
		t.Ticks = append(t.Ticks, tick{fmt.Sprintf("%.2f%%", at), "middle", words})
		taken = at + 18
	}
	end := "now"
	if t.Past {
		end = pieces[len(pieces)-1].to.In(x.frame.zone).Format(format)
	} else if state.Closed {
		end = state.ClosedAt.In(x.frame.zone).Format(format)
	}
	t.Ticks = append(t.Ticks, tick{"100%", "end", end})
}
