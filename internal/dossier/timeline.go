package dossier

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// Timeline describes the course of a handoff, from its events.
type Timeline struct {
	Hops      []Hop                 `json:"way"` // the agents that had it, in order
	Trail     []protocol.TrailEntry `json:"trail,omitempty"`
	Routings  []Routing             `json:"routings,omitempty"`
	Attempts  []Attempt             `json:"attempts,omitempty"`
	Questions []Question            `json:"questions,omitempty"`
	Stages    Stages                `json:"stages_ms"`

	open *Attempt
}

// Hop is an agent that had a handoff, with the reason.
type Hop struct {
	Agent  string    `json:"agent"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"` // submitted, reroute, escalation, taken, …
}

// Routing is a choice between agents.
type Routing struct {
	At     time.Time        `json:"at"`
	Reason string           `json:"reason"` // for the choice
	Choice protocol.Routing `json:"routing"`
}

// Attempt is an attempt, from its acceptance to its end.
type Attempt struct {
	N       int       `json:"n"` // among all attempts, from 1
	Agent   string    `json:"agent"`
	Attempt int       `json:"attempt"` // among those of this agent, from 1
	Holder  string    `json:"holder"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"` // absent while it runs
	How     string    `json:"how"`            // working, completed, failed, lost, released, …
	Words   string    `json:"words,omitempty"`
	TookMS  int64     `json:"took_ms"`
}

// Question is a question of an agent, and its answer.
type Question struct {
	At       time.Time        `json:"at"`
	Agent    string           `json:"agent"`
	Asks     string           `json:"asks"`
	Answer   *protocol.Answer `json:"answer,omitempty"`
	Answered time.Time        `json:"answered,omitzero"`
}

// Stages has the time that a handoff spent in each stage, in milliseconds. They add up to Whole.
type Stages struct {
	Gate        int64 `json:"gate,omitempty"`        // until the condition of its first offer was met, such as an approval
	Queue       int64 `json:"queue,omitempty"`       // until an agent claimed or accepted it
	Acknowledge int64 `json:"acknowledge,omitempty"` // from the claim to its acknowledgement
	Work        int64 `json:"work,omitempty"`        // from the acceptance to the end of the attempt
	Answers     int64 `json:"answers,omitempty"`     // from a question to its answer
	Deferred    int64 `json:"deferred,omitempty"`    // deferred by its agent
	Children    int64 `json:"children,omitempty"`    // waiting for its children or members
	Backoff     int64 `json:"backoff,omitempty"`     // between two attempts
	Deciding    int64 `json:"deciding,omitempty"`    // until a supervisor decided
	Whole       int64 `json:"whole"`                 // from submission to its end, or to now
}

// TimelineOf computes the timeline of a handoff. A stage or attempt that has not ended is measured
// up to now.
func TimelineOf(changes []protocol.Change, now time.Time) Timeline {
	d := Timeline{Trail: protocol.TrailOf(changes)}
	for i, c := range changes {
		state := c.Record.State
		for _, e := range c.Record.Events {
			d.addAttempt(e)
			d.addHop(e)
			d.addQuestion(e)
		}
		if state.Closed && d.open != nil {
			d.endAttempt(state.ClosedAt, "closed", state.Message)
		}
		until := now
		if i+1 < len(changes) {
			until = EventsAt(changes[i+1])
		}
		if span := until.Sub(EventsAt(c)); span > 0 && !state.Closed {
			*d.Stages.of(state) += span.Milliseconds()
		}
	}
	if len(changes) == 0 {
		return d
	}
	last := changes[len(changes)-1].Record.State
	if d.open != nil {
		d.open.TookMS = explain.Took(d.open.Began, now).Milliseconds()
		d.Attempts = append(d.Attempts, *d.open)
		d.open = nil
	}
	end := now
	if last.Closed {
		end = last.ClosedAt
	}
	d.Stages.Whole = explain.Took(last.SubmittedAt, end).Milliseconds()
	return d
}

// EventsAt returns when the events of an append happened, by the clock of their writer.
func EventsAt(c protocol.Change) time.Time {
	if n := len(c.Record.Events); n > 0 {
		return c.Record.Events[n-1].When()
	}
	return c.At
}

// of returns the field for the stage of an open handoff.
func (v *Stages) of(s protocol.State) *int64 {
	return map[lifecycle.Stage]*int64{
		lifecycle.StageGate: &v.Gate, lifecycle.StageQueue: &v.Queue, lifecycle.StageAcknowledge: &v.Acknowledge, lifecycle.StageWork: &v.Work, lifecycle.StageAnswers: &v.Answers,
		lifecycle.StageDeferred: &v.Deferred, lifecycle.StageChildren: &v.Children, lifecycle.StageBackoff: &v.Backoff, lifecycle.StageDeciding: &v.Deciding,
	}[lifecycle.StageOf(s)]
}

// addAttempt begins or ends an attempt.
func (d *Timeline) addAttempt(e protocol.Event) {
	switch o := protocol.OutlineOf(e); {
	case o.Takes && o.Attempt > 0:
		if d.open != nil {
			d.endAttempt(e.When(), "taken away", "by "+o.To)
		}
		d.open = &Attempt{N: len(d.Attempts) + 1, Agent: o.To, Attempt: o.Attempt, Holder: o.Holder, Began: e.When(), How: "goes on"}
	case o.Ends != "" && d.open != nil:
		d.endAttempt(e.When(), o.Ends, cmp.Or(o.Words, o.Code))
	}
}

func (d *Timeline) endAttempt(at time.Time, how, words string) {
	v := *d.open
	v.Ended, v.How, v.Words, v.TookMS = at, how, words, explain.Took(v.Began, at).Milliseconds()
	d.Attempts, d.open = append(d.Attempts, v), nil
}

// addHop adds the agent that gets the handoff, and its routing.
func (d *Timeline) addHop(event protocol.Event) {
	switch e := event.(type) {
	case *protocol.Offered:
		d.appendHop(e.Agent, e.At, e.Reason)
		if e.Routing != nil && (len(e.Routing.Candidates) > 0 || len(e.Routing.Warnings) > 0) {
			d.Routings = append(d.Routings, Routing{At: e.At, Reason: e.Reason, Choice: *e.Routing})
		}
	case *protocol.Taken:
		d.appendHop(e.Agent, e.At, "taken")
	}
}

func (d *Timeline) appendHop(agent string, at time.Time, reason string) {
	if n := len(d.Hops); n == 0 || d.Hops[n-1].Agent != agent {
		d.Hops = append(d.Hops, Hop{Agent: agent, At: at, Reason: reason})
	}
}

// addQuestion adds a question or an answer.
func (d *Timeline) addQuestion(event protocol.Event) {
	switch e := event.(type) {
	case *protocol.Conditioned:
		asks := explain.Needs(protocol.Conditions{NeedsContext: e.NeedsContext, NeedsPermission: e.NeedsPermission})
		if asks == "" { // a deferral has no question
			return
		}
		if e.Reason != "" {
			asks += ": " + e.Reason
		}
		d.Questions = append(d.Questions, Question{At: e.At, Agent: e.Agent, Asks: asks})
	case *protocol.Escalated:
		if e.Fence != 0 { // the holder waits for a decision
			d.Questions = append(d.Questions, Question{At: e.At, Agent: e.From, Asks: e.Reason})
		}
	case *protocol.Answered:
		n := len(d.Questions)
		if n == 0 || d.Questions[n-1].Answer != nil { // the answer to an escalation without a question
			d.Questions = append(d.Questions, Question{At: e.At})
			n++
		}
		answer := e.Answer
		d.Questions[n-1].Answer, d.Questions[n-1].Answered = &answer, e.At
	}
}

// HistoryEntry is a ledger entry for programs.
type HistoryEntry struct {
	Seq    uint64            `json:"seq"`
	At     time.Time         `json:"at"` // the engine's time stamp
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Events []json.RawMessage `json:"events"`
	State  StateView         `json:"state"`
}

// History returns the entries of a handoff for programs.
func History(changes []protocol.Change) ([]HistoryEntry, error) {
	views := make([]HistoryEntry, 0, len(changes))
	for _, c := range changes {
		v := HistoryEntry{Seq: c.Seq, At: c.At.UTC(), ID: c.Record.ID, Hash: c.Hash, State: StateOf(c.Record.State)}
		for _, e := range c.Record.Events {
			raw, err := record.EncodeEvent(e)
			if err != nil {
				return nil, err
			}
			v.Events = append(v.Events, raw)
		}
		views = append(views, v)
	}
	return views, nil
}
