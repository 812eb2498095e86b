package jetstream

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Streams, buckets and shared consumers on the engine. Operators, access rules and autoscalers use
// these names, so they do not change.
const (
	LedgerStream = "HANDOFF_LEDGER"
	WorkStream   = "HANDOFF_WORK"
	TimerStream  = "HANDOFF_TIMERS"
	// WorkspaceStream has the data that the handoffs of each workflow share. Without it only workspaces
	// are unsupported.
	WorkspaceStream = "HANDOFF_WORKSPACES"

	// SignalStream has the signals that no supervisor has taken yet.
	SignalStream = "HANDOFF_SIGNALS"

	AgentBucket  = "HANDOFF_AGENTS"
	HolderBucket = "HANDOFF_HOLDERS"
	BlobBucket   = "HANDOFF_BLOBS"

	// SupervisorConsumer is the durable consumer that all supervisors share on the due wake-ups
	// and announcements. The signals have one of the same name. Those with a Watch share one of the same name on the ledger.
	SupervisorConsumer = "supervisor"

	// QueryService is the NATS service that answers questions, and its queue group.
	QueryService = "handoff-index"
)

// The streams of the buckets, by the names that every client of the engine uses.
const (
	agentStream  = "KV_" + AgentBucket
	holderStream = "KV_" + HolderBucket
	blobStream   = "OBJ_" + BlobBucket
)

// Streams are all streams of a topology, the ledger first. LastingStreams are those that cannot be
// recreated from others, in the order of a backup: the bodies that an entry of the ledger refers to
// were stored before it.
var (
	Streams        = []string{LedgerStream, WorkStream, TimerStream, agentStream, holderStream, blobStream, WorkspaceStream, SignalStream}
	LastingStreams = []string{LedgerStream, blobStream, agentStream, WorkspaceStream}
)

const (
	ledgerPrefix = "handoff.ledger."
	// LedgerSubjectPrefix precedes the ticket in the subject of an entry.
	LedgerSubjectPrefix = ledgerPrefix
	feedPrefix          = "handoff.feed."
	workPrefix          = "handoff.work."
	timerPrefix         = "handoff.timer."
	duePrefix           = "handoff.due."
	queryPrefix         = "handoff.query."

	workspacePrefix = "handoff.workspace."
	signalPrefix    = "handoff.signal."

	agentPrefix    = "$KV." + AgentBucket + "."
	schedulePrefix = agentPrefix + "schedule."
	packagePrefix  = agentPrefix + "package."
	rulePrefix     = agentPrefix + "rule."
	templatePrefix = agentPrefix + "template."
	signalsSubject = agentPrefix + "signals." + broker.UnknownName
	holderPrefix   = "$KV." + HolderBucket + ".holder."
	slotsPrefix    = "$KV." + HolderBucket + ".slots."
	healthPrefix   = "$KV." + HolderBucket + ".health."
	limitPrefix    = "$KV." + HolderBucket + ".limit."
	blobPrefix     = "$O." + BlobBucket + "."

	// probeSubject is written by a client that watches the directory, to check whether presence can be
	// written at all. No watch covers it.
	probeSubject = "$KV." + HolderBucket + ".probe"

	// agentKeys, scheduleKeys and ruleKeys are the keys of the agents' bucket that are watched: not the
	// packages of schedules, nor the templates of rules.
	agentKeys    = "*"
	scheduleKeys = "schedule.*"
	ruleKeys     = "rule.*"

	// holderKeys and healthKeys are the keys of the holders' bucket that are watched.
	holderKeys = "holder.*"
	healthKeys = "health.*"

	// sentinel is the last token of the subject of the first message of a work stream. It has one token less
	// than any offer, so no consumer covers it. While the message exists, the engine does not scan all
	// subjects to find the first offer of a queue (25 ms per pull at a million offers, 0.18 ms with
	// it).
	sentinel = "sentinel"

	apiPrefix = "$JS.API."
)

// ledgerSubject returns the only subject of a handoff in a partition, the key of its compare-and-set.
func ledgerSubject(p int, ticket string) string { return ledgerPrefixes[p] + ticket }

// parseLedgerSubject returns the ticket of a ledger subject.
func parseLedgerSubject(subject string) (ticket string, ok bool) {
	ticket, _, ok = cutPrefix(subject, ledgerPrefix)
	return ticket, ok && ticket != "" && !strings.Contains(ticket, ".")
}

// feedSubject returns the subject for hints about new heads of a handoff.
func feedSubject(ticket string) string { return feedPrefix + ticket }

// workSubject returns the subject of an offer. It is unique to the offer, so putting it is
// idempotent while it is stored.
func workSubject(p int, k broker.OfferKey) string {
	return workPrefixes[p] + k.Agent + "." + string(k.Lane) + "." + k.Ticket + "." + strconv.FormatUint(k.Sequence, 10)
}

// parseWorkSubject returns the offer of a work subject.
func parseWorkSubject(subject string) (broker.OfferKey, bool) {
	rest, _, ok := cutPrefix(subject, workPrefix)
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 4 || laneIndex(protocol.Priority(tokens[1])) < 0 {
		return broker.OfferKey{}, false
	}
	seq, err := strconv.ParseUint(tokens[3], 10, 64)
	if err != nil || tokens[0] == "" || tokens[2] == "" {
		return broker.OfferKey{}, false
	}
	return broker.OfferKey{Agent: tokens[0], Lane: protocol.Priority(tokens[1]), Ticket: tokens[2], Sequence: seq}, true
}

// parseLane returns the queue and the lane of a subject of the work stream, and ignores the rest of
// the subject; lane may be empty.
func parseLane(subject string) (agent string, lane protocol.Priority) {
	rest, _, _ := cutPrefix(subject, workPrefix)
	agent, rest, _ = strings.Cut(rest, ".")
	word, _, _ := strings.Cut(rest, ".")
	return agent, protocol.Priority(word)
}

// laneFilter returns the filter for the offers of one lane of an agent's queue in a partition.
func laneFilter(p int, agent string, lane protocol.Priority) string {
	return workPrefixes[p] + agent + "." + string(lane) + ".>"
}

// laneConsumer returns the name of the durable consumer of one lane of an agent's queue. A lane's
// name has no dash, so the last dash separates the two.
func laneConsumer(agent string, lane protocol.Priority) string { return agent + "-" + string(lane) }

// parseLaneConsumer returns the agent and lane of a consumer of the work stream.
func parseLaneConsumer(name string) (agent string, lane protocol.Priority, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 1 || laneIndex(protocol.Priority(name[i+1:])) < 0 {
		return "", "", false
	}
	return name[:i], protocol.Priority(name[i+1:]), true
}

// laneIndex returns 0 for the most urgent lane, -1 for an unknown one.
func laneIndex(lane protocol.Priority) int { return slices.Index(protocol.Priorities, lane) }

// timerSubject returns the subject of a wake-up that waits for its time.
func timerSubject(ticket string, seq uint64) string {
	return wakeUpSubject(timerPrefixes[timerIn(seq)], ticket, seq)
}

// dueSubject returns the subject of a wake-up that has fired.
func dueSubject(ticket string, seq uint64) string {
	return wakeUpSubject(duePrefixes[timerIn(seq)], ticket, seq)
}

func wakeUpSubject(prefix, ticket string, seq uint64) string {
	return prefix + ticket + "." + strconv.FormatUint(seq, 10)
}

// parseDueSubject returns the wake-up of a due subject.
func parseDueSubject(subject string) (ticket string, seq uint64, ok bool) {
	rest, _, ok := cutPrefix(subject, duePrefix)
	if !ok {
		return "", 0, false
	}
	ticket, number, ok := strings.Cut(rest, ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	return ticket, seq, ok && err == nil && ticket != ""
}

// limitSubject returns the subject of the use of a key: a key has characters that a subject may not have.
func limitSubject(key string) string {
	sum := sha256.Sum256([]byte(key))
	return limitPrefix + hex.EncodeToString(sum[:16])
}

// querySubject returns the subject for questions of one kind.
func querySubject(verb string) string { return queryPrefix + verb }

func lastToken(subject, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(subject, prefix)
	return rest, ok && rest != "" && !strings.Contains(rest, ".")
}
