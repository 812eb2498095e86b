package index

import (
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// schema is the schema of the file. It has one row per handoff and no events, since the ledger
// answers queries by ticket.
//
// The id of a handoff is the instant of its submission in µs since 1970, or the next free one (see
// batch.newID). So rows lie in the order of their submission, every index includes that order, and
// a range of time is a range of rows. Names of agents are interned; the source of a handoff by a schedule
// is schedule:NAME, and of one by a rule signal:NAME; a word of the protocol is its
// place in the list of words; instants are µs, 0 is none; tickets are 16 bytes.
//
// waits is the number of the reason for which an open handoff is in an inbox, inbox the agent in
// whose inbox a closed one is, or that a gate asks, dead whether it is a dead letter or was redriven.
//
// gate is the kind of gate at which the handoff waits for its next offer, and gated since when.
// governed is the effect of gates, limits and deadlocks, as JSON, and marks the part of it that a
// filter asks for.
//
// past has the agents that had a handoff before the agent of its row. Most handoffs have none.
//
// tally counts the handoffs of each combination of the fields that have few values. Counting a
// million rows takes some 200 ms.
//
// hour counts the handoffs that were submitted in an hour since 1970, with outcome 0, and those that
// closed in it with each outcome.
const schema = `
CREATE TABLE position (
	only INTEGER PRIMARY KEY CHECK (only = 1),
	next TEXT NOT NULL, at INTEGER NOT NULL,
	ledger TEXT NOT NULL, words TEXT NOT NULL,
	drift INTEGER NOT NULL, indexed INTEGER NOT NULL
);
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE handoff (
	id INTEGER PRIMARY KEY,
	ticket BLOB NOT NULL, submitted INTEGER NOT NULL, source INTEGER NOT NULL, target INTEGER NOT NULL,
	type INTEGER NOT NULL, priority INTEGER NOT NULL, workflow TEXT, conversation TEXT, task TEXT, variant TEXT,
	parent BLOB, family BLOB, return_of BLOB, origin BLOB, description TEXT NOT NULL, why TEXT NOT NULL,
	seq INTEGER NOT NULL, phase INTEGER NOT NULL, outcome INTEGER NOT NULL, agent INTEGER NOT NULL, offer INTEGER,
	updated INTEGER NOT NULL, closed INTEGER NOT NULL, reason TEXT NOT NULL, holder TEXT NOT NULL,
	attempts INTEGER NOT NULL, reroutes INTEGER NOT NULL, level INTEGER NOT NULL, tokens INTEGER NOT NULL, cost INTEGER NOT NULL,
	offered INTEGER NOT NULL, taken INTEGER NOT NULL, queue_ms INTEGER, work_ms INTEGER, whole_ms INTEGER,
	accepts INTEGER NOT NULL, acks TEXT,
	waits INTEGER NOT NULL, inbox INTEGER NOT NULL, dead INTEGER NOT NULL,
	gate INTEGER NOT NULL, gated INTEGER NOT NULL, marks INTEGER NOT NULL, governed TEXT,
	others TEXT
);
CREATE TABLE past (handoff INTEGER NOT NULL, agent INTEGER NOT NULL, PRIMARY KEY (handoff, agent)) WITHOUT ROWID;
CREATE INDEX by_past ON past (agent, handoff);
CREATE UNIQUE INDEX by_ticket ON handoff (ticket);
CREATE INDEX by_offer ON handoff (agent, priority, offer) WHERE offer IS NOT NULL;
CREATE INDEX by_question ON handoff (source) WHERE waits = 4;
CREATE INDEX by_inbox ON handoff (inbox) WHERE inbox <> 0;
CREATE INDEX by_gate ON handoff (gate, gated) WHERE gate <> 0;
CREATE INDEX by_marks ON handoff (marks) WHERE marks <> 0;
CREATE INDEX by_dead ON handoff (closed, id) WHERE dead <> 0;
CREATE INDEX by_parent ON handoff (parent) WHERE parent IS NOT NULL;
CREATE INDEX by_family ON handoff (family) WHERE family IS NOT NULL;
CREATE INDEX by_return_of ON handoff (return_of) WHERE return_of IS NOT NULL;
CREATE INDEX by_origin ON handoff (origin) WHERE origin IS NOT NULL;
CREATE TABLE tally (
	agent INTEGER NOT NULL, outcome INTEGER NOT NULL, phase INTEGER NOT NULL, priority INTEGER NOT NULL, type INTEGER NOT NULL,
	n INTEGER NOT NULL, PRIMARY KEY (agent, outcome, phase, priority, type)
) WITHOUT ROWID;
CREATE TABLE hour (at INTEGER NOT NULL, outcome INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (at, outcome)) WITHOUT ROWID;
CREATE VIRTUAL TABLE text USING fts5 (words, content='', contentless_delete=1, detail=none, tokenize='ascii');
`

// secondary are the indexes that a fill makes at its end: made at once they cost a fifth of their
// cost row by row. Partial indexes over few handoffs exist from the start, since they cost the
// other handoffs nothing.
//
// Those with updated find the ids of a page by the last change without a look at the rows, and by_agent
// with waits an inbox: it is written with each change in any case. ANALYZE counts the rows of each value,
// by which SQLite chooses an index.
var secondary = []string{
	`CREATE INDEX IF NOT EXISTS by_agent ON handoff (agent, outcome, updated, waits)`,
	`CREATE INDEX IF NOT EXISTS by_source ON handoff (source, target, outcome, updated)`,
	`CREATE INDEX IF NOT EXISTS by_target ON handoff (target, outcome, updated)`,
	`CREATE INDEX IF NOT EXISTS by_outcome ON handoff (outcome)`,
	`CREATE INDEX IF NOT EXISTS by_ended ON handoff (outcome, updated)`,
	`CREATE INDEX IF NOT EXISTS by_phase ON handoff (phase)`,
	`CREATE INDEX IF NOT EXISTS by_updated ON handoff (updated, outcome)`,
	`CREATE INDEX IF NOT EXISTS by_workflow ON handoff (workflow) WHERE workflow IS NOT NULL`,
	`CREATE INDEX IF NOT EXISTS by_conversation ON handoff (conversation) WHERE conversation IS NOT NULL`,
	`CREATE INDEX IF NOT EXISTS by_task ON handoff (task) WHERE task IS NOT NULL`,
	`CREATE INDEX IF NOT EXISTS by_variant ON handoff (variant) WHERE variant IS NOT NULL`,
	`ANALYZE`,
}

// words are the words of a field. In the file a word is its place, from 1; 0 is
// none, and a word that this program does not know is unknownWord.
type words[T ~string] []T

const unknownWord = 15

var (
	phases     = words[protocol.Phase](protocol.Phases)
	outcomes   = words[protocol.Outcome](protocol.Outcomes)
	priorities = words[protocol.Priority](protocol.Priorities)
	types      = words[protocol.Type](protocol.Types)
	gates      = words[protocol.GateKind](protocol.GateKinds)
)

func (w words[T]) number(word T) int {
	if i := slices.Index(w, word); word == "" || i >= 0 {
		return i + 1
	}
	return unknownWord
}

func (w words[T]) word(number int) T {
	if number < 1 || number > len(w) {
		return ""
	}
	return w[number-1]
}

// allWords lists the words of all numbers in a file. A file with other words is from an older
// version.
var allWords = fmt.Sprint(phases, outcomes, priorities, types, inboxReasons, gates)
