package cli

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
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
func topAgents(d *lifecycle.Directory, queues []broker.QueueStatus, rates map[string]rates) []topAgent {
	all := map[string]*topAgent{}
	of := func(id string) *topAgent {
		if all[id] == nil {
			profile, known := d.Agent(id)
			all[id] = &topAgent{Agent: id, Availability: "unknown", rates: rates[id]}
			if known {
				all[id].Availability = api.AvailabilityOf(profile, d)
				all[id].PolledAt, _ = d.Polled(id)
			}
			all[id].Workers, all[id].Slots, all[id].Busy = d.Load(id)
		}
		return all[id]
	}
	for id := range d.Agents {
		of(id)
	}
	for _, q := range queues {
		a := of(q.Agent)
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

const (
	// candidatesMax is how many handoffs of each kind are looked at.
	candidatesMax = 20
	// oldestMax is how many are shown for nothing but their age.
	oldestMax = 3
)
