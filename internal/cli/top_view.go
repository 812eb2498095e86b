package cli

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// topView is one picture, for programs.
type topView struct {
	At        time.Time   `json:"at"`
	Served    int         `json:"served"` // agents that have a worker
	Open      int64       `json:"open"`   // handoffs; -1 where no index answers
	Rates     rates       `json:"rates"`
	Agents    []topAgent  `json:"agents"`
	Attention []attention `json:"attention"`
	Note      string      `json:"note,omitempty"` // what is missing, and why
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
	Words       string    `json:"words"` // what it waits for
}

func topAttention(needs []api.Attended) []attention {
	all := []attention{}
	for _, n := range needs {
		all = append(all, attention{Why: n.Need, Ticket: n.State.Ticket, Agent: n.State.Agent, SubmittedAt: n.State.SubmittedAt, Words: phrase(n.Words)})
	}
	return all
}
