package dossier

import (
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Timeline has the course of a handoff, from its events.
type Timeline struct {
	Hops      []Hop                 `json:"way"` // the agents that had it, in order
	Trail     []protocol.TrailEntry `json:"trail,omitempty"`
	Routings  []Routing             `json:"routings,omitempty"`
	Attempts  []Attempt             `json:"attempts,omitempty"`
	Questions []Question            `json:"questions,omitempty"`
	Stages    Stages                `json:"stages_ms"`

	open *Attempt
}

// Hop is an agent that had a handoff, and why it got it.
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
	N       int       `json:"n"` // of all, from 1
	Agent   string    `json:"agent"`
	Attempt int       `json:"attempt"` // at this agent
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
	Gate        int64 `json:"gate,omitempty"`        // until what its offer waited for was there: an approval, say
	Queue       int64 `json:"queue,omitempty"`       // until an agent claimed or accepted it
	Acknowledge int64 `json:"acknowledge,omitempty"` // claimed, until its acknowledgement
	Work        int64 `json:"work,omitempty"`        // accepted, until the attempt ended
	Answers     int64 `json:"answers,omitempty"`     // asked, until it was answered
	Deferred    int64 `json:"deferred,omitempty"`    // put off by its agent
	Children    int64 `json:"children,omitempty"`    // waiting for its children or members
	Backoff     int64 `json:"backoff,omitempty"`     // between two attempts
	Deciding    int64 `json:"deciding,omitempty"`    // until a supervisor decided
	Whole       int64 `json:"whole"`                 // submission to end, or to now
}

// TimelineOf computes the timeline of a handoff. now ends the stage and the attempt that still run.
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
			until = eventsAt(changes[i+1])
		}
		if span := until.Sub(eventsAt(c)); span > 0 && !state.Closed {
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

// eventsAt is when the events of an append happened, by the clock of their writer.
func eventsAt(c protocol.Change) time.Time {
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
func (d *Timeline) addAttempt(event protocol.Event) {
	switch e := event.(type) {
	case *protocol.Accepted:
		d.beginAttempt(Attempt{Agent: e.Agent, Attempt: e.Attempt, Holder: e.Holder, Began: e.At})
	case *protocol.Taken:
		if d.open != nil {
			d.endAttempt(e.At, "taken away", "by "+e.Agent)
		}
		d.beginAttempt(Attempt{Agent: e.Agent, Attempt: 1, Holder: e.Holder, Began: e.At})
	}
	if d.open == nil {
		return
	}
	switch e := event.(type) {
	case *protocol.Completed:
		d.endAttempt(e.At, "completed", "")
	case *protocol.Failed:
		d.endAttempt(e.At, "failed", e.Message)
	case *protocol.LeaseLost:
		d.endAttempt(e.At, "lost", "its worker stopped answering")
	case *protocol.Released:
		d.endAttempt(e.At, "given back", e.Reason)
	case *protocol.Rejected:
		d.endAttempt(e.At, "refused", e.Reason)
	case *protocol.Conditioned:
		d.endAttempt(e.At, "put off", e.Reason)
	case *protocol.TimedOut:
		d.endAttempt(e.At, "timed out", string(e.Clock)+" timeout")
	case *protocol.Escalated:
		d.endAttempt(e.At, "passed up", e.Reason)
	case *protocol.Suspended:
		d.endAttempt(e.At, "let go", "until what it handed on has ended")
	case *protocol.RolledBack:
		d.endAttempt(e.At, "given back", e.Reason)
	case *protocol.Rerouted:
		d.endAttempt(e.At, "taken away", "given to "+e.To)
	case *protocol.Answered:
		d.endAttempt(e.At, "given back", "answered")
	case *protocol.Closed:
		d.endAttempt(e.At, "ended", e.Message)
	}
}

func (d *Timeline) beginAttempt(v Attempt) {
	v.N, v.How = len(d.Attempts)+1, "goes on"
	d.open = &v
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
		if asks == "" { // a deferral asks nothing
			return
		}
		if e.Reason != "" {
			asks += ": " + e.Reason
		}
		d.Questions = append(d.Questions, Question{At: e.At, Agent: e.Agent, Asks: asks})
	case *protocol.Escalated:
		if e.Fence != 0 { // its holder asks for a decision
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
