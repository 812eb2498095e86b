package lifecycle

import (
	"cmp"
	"slices"

	p "github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/internal/words"
)

// Found is an agent that Match has found.
type Found struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"` // BM25; scores of one question compare, those of two do not
	// Words are the words of the question that the profile has, the weightiest first.
	Words []string `json:"words"`
}

// Matches is what Match has found, the best first.
type Matches struct {
	Found []Found `json:"found"`
	// Certain says that the best is well ahead of the second, and has enough of the question:
	// to hand to it unasked is reasonable. Without it a person or a model chooses.
	Certain bool `json:"certain"`
	// ChosenBy is what chose the first, a command or a model, where the words were not certain.
	ChosenBy string `json:"chosen_by,omitempty"`
}

// Others returns the agents besides the first that are worth asking where that one refuses, without
// the source: those with half the best score, at most protocol.RankedMax.
func (m Matches) Others(source string) (agents []string) {
	best := 0.0
	for _, f := range m.Found {
		best = max(best, f.Score)
	}
	for _, f := range m.Found[min(1, len(m.Found)):] {
		if f.Agent != source && f.Score >= matchOther*best && len(agents) < p.RankedMax {
			agents = append(agents, f.Agent)
		}
	}
	return agents
}

// Choose puts an agent first that something else than Match has chosen.
func (m *Matches) Choose(agent, by string, most int) {
	chosen := Found{Agent: agent, Words: []string{}}
	rest := slices.DeleteFunc(slices.Clone(m.Found), func(f Found) bool {
		if f.Agent == agent {
			chosen = f
		}
		return f.Agent == agent
	})
	m.ChosenBy, m.Found = by, append([]Found{chosen}, rest...)
	m.Found = m.Found[:min(len(m.Found), max(most, 1))]
}

const (
	matchAhead  = 1.25 // how many times the score of the second the best must have
	matchEnough = 0.25 // of the weight of all words of the question, what the best must have
	matchOther  = 0.5  // of the best score, what an agent must have that is asked after it
)

// Match finds the agents whose profiles have the words of a task: BM25 over id, name,
// specialization and capabilities, which count three times, examples, which count twice, and the
// description. It leaves out agents that are paused or take no handoffs, and the person. It asks
// no model, and takes about 20 ms for 2,000 agents. At most most agents are returned,
// those without any word of the task never.
func Match(d *Directory, task string, most int) Matches {
	question := words.Of(task)
	matches := Matches{Found: []Found{}}
	if d == nil || len(question) == 0 {
		return matches
	}
	agents, docs := profileWords(d)
	shares := map[string]float64{}
	for i, rank := range words.Ranks(question, docs) {
		if rank.Score > 0 {
			matches.Found = append(matches.Found, Found{agents[i], rank.Score, rank.Words})
			shares[agents[i]] = rank.Share
		}
	}
	slices.SortFunc(matches.Found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Agent, b.Agent))
	})
	if all := matches.Found; len(all) > 0 {
		ahead := len(all) == 1 || all[0].Score >= matchAhead*all[1].Score
		matches.Certain = ahead && shares[all[0].Agent] >= matchEnough
	}
	matches.Found = matches.Found[:min(len(matches.Found), max(most, 0))]
	return matches
}

// CanBeFound tells whether an agent takes what words or a model find it for.
func CanBeFound(profile p.Profile) bool {
	return profile.ID != p.Human && !profile.Paused && profile.Accepts()
}

// profileWords returns the words of all agents that take handoffs.
func profileWords(d *Directory) (agents []string, docs []words.Doc) {
	for id, profile := range d.Agents {
		if id == p.Human || !CanBeFound(profile) {
			continue
		}
		var doc words.Doc
		doc.Add(3, id, profile.Name, profile.Specialization)
		for _, c := range profile.Capabilities {
			doc.Add(3, c.ID)
		}
		doc.Add(2, profile.Examples...)
		doc.Add(1, profile.Description)
		agents, docs = append(agents, id), append(docs, doc)
	}
	return agents, docs
}
