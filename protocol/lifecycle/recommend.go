package lifecycle

import (
	"cmp"
	"math"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
)

// Ends counts how the handoffs to an agent have ended.
type Ends struct {
	Succeeded int64 `json:"succeeded"` // with success or partial
	Failed    int64 `json:"failed"`    // with anything else
}

// rate is the success of handoffs, from 0 to 1. Without any it is one half, and a single one does
// not make it certain. It goes in steps of 0.05.
func (e Ends) rate() float64 {
	return math.Round(20*float64(e.Succeeded+2)/float64(e.Succeeded+e.Failed+4)) / 20
}

// Recommended is an agent that another one may hand off to.
type Recommended struct {
	Found
	// Worth is what it is ranked by: its share of the best match, times its rate.
	Worth float64 `json:"worth"`
	Rate  float64 `json:"rate"`
	Ends  Ends    `json:"ends"`
}

// Recommend ranks the agents that an agent may hand off to, for a task: by their match (Match)
// times the success of the handoffs between the two so far. Without a task all of them are ranked,
// by success alone. The answer is advice: no handoff is routed by it.
func Recommend(d *Directory, from, task string, ends map[string]Ends, most int) []Recommended {
	source, _ := d.Agent(from)
	found := Match(d, task, math.MaxInt).Found
	if task == "" {
		found = allFit(d)
	}
	all := []Recommended{}
	for _, f := range found {
		to, _ := d.Agent(f.Agent)
		if f.Agent == from || from != p.Human && !(source.HandsOffTo(f.Agent) && to.AcceptsHandoffsFrom(from)) {
			continue
		}
		rate := ends[f.Agent].rate()
		all = append(all, Recommended{Found: f, Worth: rate * f.Score, Rate: rate, Ends: ends[f.Agent]})
	}
	best := 0.0
	for _, r := range all {
		best = max(best, r.Score)
	}
	for i := range all {
		all[i].Worth /= max(best, math.SmallestNonzeroFloat64)
	}
	slices.SortFunc(all, func(a, b Recommended) int {
		return cmp.Or(cmp.Compare(b.Worth, a.Worth), cmp.Compare(a.Agent, b.Agent))
	})
	return all[:min(len(all), max(most, 0))]
}

// allFit are all agents that take handoffs, each as good a match as the others.
func allFit(d *Directory) (all []Found) {
	agents, _ := profileWords(d)
	for _, agent := range agents {
		all = append(all, Found{Agent: agent, Score: 1, Words: []string{}})
	}
	return all
}
