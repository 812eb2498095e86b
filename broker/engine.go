package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Errors that callers branch on. Engines wrap them.
var (
	// ErrConflict: another append came first; reread the head and decide again.
	ErrConflict = errors.New("another append came first")
	// ErrNotFound: the ledger's leader has no such entry.
	ErrNotFound = errors.New("not found")
	// ErrLeaseLost: another holder has the claim, or none has it.
	ErrLeaseLost = errors.New("lease lost")
	// ErrDeadlinePassed is an ErrLeaseLost: the deadline ended the claim.
	ErrDeadlinePassed error = &clockError{"the deadline passed"}
	// ErrWorkTimeout is an ErrLeaseLost: the work exceeded its time limit.
	ErrWorkTimeout error = &clockError{"the work timeout passed"}
	// ErrProgressTimeout is an ErrLeaseLost: no progress was reported in time.
	ErrProgressTimeout error = &clockError{"no progress was reported in time"}
	// ErrUnreachable: the engine does not answer.
	ErrUnreachable = errors.New("engine not reachable")
	// ErrClosed: this process has closed its engine. It wraps ErrUnreachable.
	ErrClosed = fmt.Errorf("%w: this engine is closed", ErrUnreachable)
	// ErrNotAllowed: the connection works, but this user has no permission for a subject. Retrying does
	// not help. The text names both.
	ErrNotAllowed = errors.New("not allowed")
	// ErrNoTopology: the server lacks the streams that handoff topology ensure makes.
	ErrNoTopology = errors.New("the server is not initialised")
	// ErrLedgerChanged: the ledger does not continue from the last entry read. It is another ledger,
	// has lost its end, or has dropped the next entries because of their age.
	ErrLedgerChanged = errors.New("the ledger is not the one that was read")
	// ErrNoAnswer: the engine responds, but no process serves the verb (Serve).
	ErrNoAnswer = errors.New("no process answers questions about handoffs")
)

// Entry is one message of the ledger as stored.
type Entry struct {
	Ticket string
	Seq    uint64
	At     time.Time // the engine's time stamp, UTC
	Body   []byte    // a protocol.Record
}

// LedgerInfo identifies a ledger and its range. That of a ledger of several partitions has the first
// one's, and the Others.
type LedgerInfo struct {
	Created time.Time // of the ledger itself, UTC: each ledger has its own
	Began   time.Time // no entry is older; before Created if restored from a backup
	First   uint64    // the oldest sequence that it still has, or will have
	Last    uint64    // the newest that it ever had; 0 before the first append

	LastAt   time.Time // of the newest entry; zero is unknown
	Messages uint64    // current number; 0 is none or unknown
	Handoffs uint64    // that it has any entry of; 0 is none or unknown
	Accepted []Range   // of lost entries whose loss a person has accepted

	Others []LedgerInfo // the further partitions
}

// Lost reports whether all entries of a range are known to be lost.
func (l LedgerInfo) Lost(from, to uint64) bool {
	return from <= to && len(Without([]Range{{from, to}}, l.Accepted)) == 0
}

// OfferKey names an offer in the queue.
type OfferKey struct {
	Agent    string
	Lane     protocol.Priority
	Ticket   string
	Sequence uint64 // of the ledger append that made the offer
}

// Validate refuses a key that does not form one literal subject of a queue.
func (k OfferKey) Validate() error {
	if err := cmp.Or(protocol.CheckID("ticket", k.Ticket), protocol.CheckID("agent", k.Agent)); err != nil {
		return err
	}
	if !slices.Contains(protocol.Priorities, k.Lane) {
		return protocol.Errorf(protocol.CodeInvalid, "priority", "must be one of %v, not %.64q", protocol.Priorities, string(k.Lane))
	}
	return nil
}

// Delivery is an offer that the queue has delivered to this process. Exactly one of Remove and
// Release ends it; otherwise the queue redelivers the offer one ack wait (AckWait) after the last
// Extend. None of the three proves ownership: only the ledger does.
type Delivery interface {
	Key() OfferKey
	Body() []byte
	// Remove removes the offer from the queue.
	Remove() error
	// Release lets the queue redeliver the offer at once, to any worker.
	Release() error
	// Extend restarts the ack wait.
	Extend() error
}

// WakeUp is a wake-up that has fired, or the announcement of an append.
type WakeUp struct {
	Ticket string
	Seq    uint64    // the sequence it was armed under; for an announcement, the append's
	At     time.Time // when it was due; zero for an announcement
	// Attention is the kind of attention that the announced append needs; empty for an armed wake-up.
	Attention lifecycle.Attention
}

// OutboxEntry is an offer, a wake-up or an announcement. The offer is in the form of PutOffer, the
// wake-up in that of Arm. An announcement is a WakeUp with an Attention, and is due at once.
type OutboxEntry struct {
	Offer OfferKey
	Body  []byte                // nil for a wake-up or an announcement
	Trace protocol.TraceContext // for the offer's message; zero is none

	WakeUp WakeUp
}

// AckWait is how long the queue withholds a delivered offer from others, unless it is extended or
// ended.
const AckWait = 30 * time.Second

// AckWaitMin is the shortest such time: see Queue.KeepOffers.
const AckWaitMin = 2 * time.Second

// FollowWait is how long an entry that was delivered to a supervisor is withheld from the others: a
// wake-up, an announcement or a ledger entry. It is the longest delay that a dead supervisor
// causes. A slow supervisor may see its entry redelivered to another, which is harmless.
const FollowWait = 5 * time.Second

// Engine is the storage and messaging that a Broker runs on: twelve parts, none of which decides.
// JetStream is the shipped one; package brokertest has one in memory for simulation, and the
// conformance suite that both pass. A Broker keeps the parts private: a caller that needs one takes
// it as its own argument, by the interface that it needs.
//
// All methods of the parts are safe for concurrent use and block until the engine has answered or
// ctx ends. A method that retries until ctx ends documents it; the others bridge an election, for
// at most the engine's timeout (jetstream.Config.Timeout), and then return ErrUnreachable
// (wrapped). All return ErrClosed once the engine is closed. Returned channels are not closed when
// ctx ends.
type Engine interface {
	Clock
	Ledger
	Queue
	Timers
	Directory
	Healths
	KeyUses
	Settings
	Records
	Signals
	Workspaces
	Blobs
	Bus
}

// Clock is the engine's time, shared by processes whose own clocks differ.
type Clock interface {
	// Now returns the engine's time, as last measured by this process; it does not block. Decisions use
	// it, so that processes whose clocks differ decide alike.
	Now() time.Time
}

// LedgerReader reads the handoffs' ledger; it changes nothing.
type LedgerReader interface {
	// Last reads the head from the stream's leader. It is never older than any append acknowledged
	// before the call, nor than sequence min, which it waits for until ctx ends.
	Last(ctx context.Context, ticket string, min uint64) (Entry, error)
	// Next reads the ticket's first entry with a sequence greater than after, from the leader.
	Next(ctx context.Context, ticket string, after uint64) (Entry, error)
	// Since reads from the leader where the entries stored at or after an instant of the engine's clock
	// begin. It is the end of the ledger if there are none.
	Since(ctx context.Context, at time.Time) (Cursor, error)
	// Heads calls fn with the last entry of every ticket, in the order of their sequences, up to the
	// ledger's end when the call began. Newer entries may appear meanwhile; on replicas a ticket may
	// then come twice, its last entry last.
	Heads(ctx context.Context, fn func(Entry) error) error
	// Entries calls fn with every entry behind a cursor, in the order of their sequences, up to the
	// ledger's end when the call began.
	Entries(ctx context.Context, from Cursor, fn func(Entry) error) error
	// LedgerInfo reads the ledger's range from the leader: no append that was acknowledged before the
	// call has a higher sequence than its Last.
	LedgerInfo(ctx context.Context) (LedgerInfo, error)
	// Tail calls fn with every message of the ledger behind a cursor, those of each partition in order
	// and without a gap. It starts with the stored messages and continues with new ones until ctx ends.
	// A malformed message, which never becomes an entry, has no Ticket. Tail does not retry: if it can
	// no longer guarantee the order, it ends with ErrUnreachable, and the caller resumes after its last
	// messages. It ends with ErrLedgerChanged if the ledger does not continue from there. fn is called
	// by one goroutine at a time.
	Tail(ctx context.Context, from Cursor, fn func(Entry) error) error
}

// Ledger keeps the appends of all handoffs, those of each partition in one order, and reports new
// ones.
type Ledger interface {
	LedgerReader
	// Append stores body as the successor of sequence after on the ticket's subject; 0 means the
	// ticket's first. id is the record's. The engine announces the append to the supervisors by its
	// attention (see Announcer). It does not keep body. Append returns the sequence, or ErrConflict if
	// another append came first. It retries a timeout or a lost connection until ctx ends; if the
	// earlier try was stored, it returns that sequence. If ctx ends first, the append may or may not be
	// stored, and the error wraps ctx.Err().
	Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (seq uint64, err error)
	// Feed hints, best effort, that the ticket has a new head: its sequence. Hints come from the
	// appending engine, for every append but a ticket's first. They may be missing, late, or coalesced
	// into the latest. stop ends the feed.
	Feed(ctx context.Context, ticket string) (hints <-chan uint64, stop func(), err error)
	// Follow delivers this process its share of all new entries until ctx ends: shared with every other
	// follower, each entry at least once, sometimes out of order. An entry is redelivered, to any
	// follower, until its done is called. fn is called from one goroutine and must not block for long;
	// done may be called later and from any goroutine. Supervisors use Follow for counting only:
	// appends that need a supervisor are announced, and come with Due.
	Follow(ctx context.Context, fn func(e Entry, done func())) error
}

// Queue holds the offers to each agent until a worker of that agent takes them.
type Queue interface {
	// EnsureQueue ensures that the agent's queue can be pulled from.
	EnsureQueue(ctx context.Context, agent string) error
	// KeepOffers sets how long an agent's queue withholds a delivered offer from others: wait,
	// AckWaitMin to AckWait, since the offer was last extended. A worker calls it with its lease. It
	// lengthens the time of the queue, and shortens it only if no worker pulls or has an offer.
	KeepOffers(ctx context.Context, agent string, wait time.Duration) error
	// PutOffer puts an offer into the queue. Repeating it is no error. A removed offer may be put again
	// and is stale then: the claim drops it. The engine does not keep body.
	PutOffer(ctx context.Context, key OfferKey, body []byte) error
	// RemoveOffer removes an offer from its queue, delivered or not. It is no error if the queue does
	// not have it.
	RemoveOffer(ctx context.Context, key OfferKey) error
	// Offers calls fn with every offer in an agent's queue, delivered or not; an empty agent means all
	// queues. It is for small numbers: with a million offers the engine works for seconds.
	Offers(ctx context.Context, agent string, fn func(OfferKey) error) error
	// OffersBetween calls fn with every remaining offer that was queued at from or later and before
	// until, by the engine's clock, in that order, delivered or not.
	OffersBetween(ctx context.Context, from, until time.Time, fn func(key OfferKey, at time.Time) error) error
	// Pull takes up to most offers, and waits up to wait for the first. It returns an empty slice if
	// there was none. On replicas an offer, and its lane, may become visible shortly after PutOffer.
	//
	// Of every 8 offers (TurnEvery) that this engine takes for the agent, in one pull or in many, 7 are
	// of the most urgent non-empty lane: critical before high before normal before low. The eighth is
	// for the less urgent lanes (weighted fair queueing, 7:1): high, normal and low take turns. If the
	// lane whose turn it is is empty, the next of the three that has an offer gets the turn, and if all
	// three are empty, the usual order applies (LaneOrder). So no lane starves behind more urgent ones:
	// if all lanes always have offers, critical gets 21 of 24 (TurnRound) and the others one each, and
	// the first offer of any lane is taken within 24, the n-th within 24 n. The count is per engine and
	// starts at 0: a client that opens an engine for every single offer only gets the most urgent lane.
	// A lane found empty may show a new offer slightly later. Within one batch the order has no
	// meaning.
	Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]Delivery, error)
	// QueueDepth counts the offers in the agent's queue, delivered or not.
	QueueDepth(ctx context.Context, agent string) (int, error)
	// Queues returns the status of every non-empty lane of every queue, in the order of agents and
	// lanes. Lanes change during the call, so two of them may be of different moments. Offers to an
	// agent that is not registered are counted once a worker has pulled for it.
	Queues(ctx context.Context) ([]QueueStatus, error)
	// PublishOutbox is PutOffer and Arm for many entries, and announces appends: it sends them without
	// waiting for each answer. It returns an error for each, nil if the entry is stored.
	PublishOutbox(ctx context.Context, entries []OutboxEntry) []error
}

// Timers wake a handoff at a set time, or when an append of it is announced.
type Timers interface {
	// Arm sets the ticket's wake-up under sequence seq, and replaces a wake-up with the same sequence.
	// It fires within 250 ms after at, and is delivered by Due.
	Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error
	// Due delivers this process its share of the fired wake-ups and the announcements, like Follow.
	Due(ctx context.Context, fn func(w WakeUp, done func())) error
	// Settled drops the later announcement of an append of this process, because its work is done. It
	// does not block.
	Settled(ticket string, seq uint64)
}

// Directory knows the agents, the present holders, and the slots of agents that have a limit.
type Directory interface {
	// PutProfile registers or replaces an agent.
	PutProfile(ctx context.Context, p protocol.Profile) error
	// Profile reads an agent from the leader; ErrNotFound.
	Profile(ctx context.Context, agent string) (protocol.Profile, error)
	// RemoveProfile removes an agent. Its queue and offers remain.
	RemoveProfile(ctx context.Context, agent string) error
	// Beat registers a holder, or prolongs its presence by its lease.
	Beat(ctx context.Context, h protocol.Holder) error
	// Holder reads a holder from the leader; ErrNotFound when it has expired.
	Holder(ctx context.Context, id string) (protocol.Holder, error)
	// RemoveHolder ends a holder's presence at once.
	RemoveHolder(ctx context.Context, id string) error
	// Slots reads from the leader which handoffs an agent with max_concurrency is working on, and their
	// revision; 0 if it never had any.
	Slots(ctx context.Context, agent string) (slots protocol.Slots, rev uint64, err error)
	// PutSlots replaces the slots if rev is still their revision, and returns the next revision;
	// ErrConflict.
	PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error)
	// Directory returns the current snapshot. The first call starts a watch
	// and waits until it has caught up; later calls do not block.
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	// Departures delivers every holder that expired or left, after Directory has dropped it. Best
	// effort, until ctx ends.
	Departures(ctx context.Context) (<-chan protocol.Holder, error)
}

// Healths keep the recent results of the attempts of agents. A snapshot of the Directory has them,
// too.
type Healths interface {
	// Health reads from the leader the recent results of the attempts of an agent, and their revision;
	// a zero Health if it has none.
	Health(ctx context.Context, agent string) (h protocol.Health, rev uint64, err error)
	// PutHealth replaces the results of an agent if rev is still their revision, and returns the next
	// revision; otherwise the error is ErrConflict. The entry expires after HealthTTL.
	PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error)
}

// KeyUses keep the use of the keys that have a limit.
type KeyUses interface {
	// KeyUse reads the use of a key from the leader, and its revision; a zero use and revision 0 if there
	// is none.
	KeyUse(ctx context.Context, key string) (use protocol.KeyUse, rev uint64, err error)
	// PutKeyUse replaces it if rev is still its revision, and returns the next revision; ErrConflict. The
	// entry expires after KeyUseTTL.
	PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error)
	// KeyUses reads the use of every key, in any order. It may lag behind the leader by a moment.
	KeyUses(ctx context.Context) ([]protocol.KeyUse, error)
}

// Settings keep the settings of all agents. A snapshot of the Directory has them, too.
type Settings interface {
	// Fleet reads the settings of the fleet from the leader, and their revision; revision 0 means that
	// none were ever stored. The error for unreadable settings is a *protocol.Error.
	Fleet(ctx context.Context) (fleet protocol.Fleet, rev uint64, err error)
	// PutFleet replaces them if rev is still their revision, and returns the next revision;
	// ErrConflict.
	PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error)
}

// Records keep small records of the fleet, each under a kind and a name. A snapshot of the Directory
// has the schedules and the rules, too.
type Records interface {
	// Record reads a record from the leader, and its revision; the body is nil if there is none, and
	// revision 0 means that there never was one.
	Record(ctx context.Context, key RecordKey) (body []byte, rev uint64, err error)
	// PutRecord replaces it if rev is still its revision, and returns the next revision; ErrConflict. A
	// body has RecordBytesMax at most.
	PutRecord(ctx context.Context, key RecordKey, body []byte, rev uint64) (uint64, error)
	// RemoveRecord removes a record, if there is one.
	RemoveRecord(ctx context.Context, key RecordKey) error
}

// RecordKey names a record.
type RecordKey struct {
	Kind RecordKind
	Name string // an id
}

// RecordKind is a kind of record.
type RecordKind string

const (
	ScheduleRecord RecordKind = "schedule" // a protocol.Schedule
	PackageRecord  RecordKind = "package"  // the package of a schedule
	RuleRecord     RecordKind = "rule"     // a protocol.Rule
	TemplateRecord RecordKind = "template" // the template of a rule
	// SignalsRecord has one record, UnknownName: a protocol.UnknownSignals.
	SignalsRecord RecordKind = "signals"
)

// UnknownName is the name of the record of SignalsRecord.
const UnknownName = "unknown"

// RecordBytesMax bounds a record.
const RecordBytesMax = protocol.SchedulePackageBytesMax

// Signals keep signals until a supervisor has turned them into handoffs.
type Signals interface {
	// PutSignal stores a signal. A second one with the same name and id within SignalTwice is dropped.
	// It is refused with CodeBusy (a *protocol.Error) if there are SignalsMax, or SignalsOfNameMax of its name.
	PutSignal(ctx context.Context, s protocol.Signal) error
	// PullSignals takes up to most signals, and waits up to wait for the first. It returns an empty slice
	// if there was none. A signal that is neither Done nor delayed is delivered again, to any process,
	// after SignalWait.
	PullSignals(ctx context.Context, most int, wait time.Duration) ([]SignalDelivery, error)
	// SignalsWaiting counts the stored signals, delivered or not.
	SignalsWaiting(ctx context.Context) (int, error)
}

// SignalDelivery is a signal that was delivered to this process.
type SignalDelivery interface {
	Signal() protocol.Signal
	// At is when the engine stored it, and Attempt counts its deliveries, from 1.
	At() time.Time
	Attempt() int
	// Done removes the signal.
	Done() error
	// Again delivers it again after a time.
	Again(after time.Duration) error
}

const (
	// SignalTwice is how long a second signal with the same name and id is dropped.
	SignalTwice = 2 * time.Minute
	// SignalWait is how long a delivered signal is withheld from others.
	SignalWait = 10 * time.Second
	// SignalAge is how long a signal is kept at most.
	SignalAge = 30 * 24 * time.Hour
	// SignalsMax and SignalsOfNameMax bound the stored signals, in all and of one name.
	SignalsMax, SignalsOfNameMax = 50_000, 20_000
)

// Workspaces keep the data that the handoffs of a workflow share: one record each, whose last
// append is its head. An engine without workspaces answers with CodeUnsupported (a
// *protocol.Error).
type Workspaces interface {
	// WorkspaceHead reads the head of a workspace by its id from the leader; ErrNotFound.
	WorkspaceHead(ctx context.Context, id string) (WorkspaceEntry, error)
	// AppendWorkspace stores body as the successor of sequence after; 0 means the first. record is the
	// id of the append. It returns the sequence, or ErrConflict if another append came first. It
	// retries a timeout; if the earlier try was stored, it returns that sequence.
	AppendWorkspace(ctx context.Context, id string, after uint64, record string, body []byte) (seq uint64, err error)
	// EachWorkspace calls fn with the id of every workspace, in the order of the ids.
	EachWorkspace(ctx context.Context, fn func(id string) error) error
}

// WorkspaceEntry is the last append of a workspace as stored.
type WorkspaceEntry struct {
	Seq  uint64
	At   time.Time // the engine's time stamp, UTC
	Body []byte    // a protocol.WorkspaceRecord
}

// ErrNoWorkspaces is the refusal of an engine that keeps no workspaces.
var ErrNoWorkspaces = protocol.Errorf(protocol.CodeUnsupported, "workspace", "the engine keeps no workspaces: its operator has to create the stream for them")

// Blobs keep bodies that are too large for an entry or an offer.
type Blobs interface {
	// PutBlob stores a body under its digest. It is idempotent.
	PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error)
	// Blob reads a body and checks its digest. It returns ErrNotFound, or a *DamagedBody, which wraps
	// it, if the stored bytes differ.
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
	// HasBlob returns nil if the store has the metadata of a body, which it does not read; ErrNotFound.
	HasBlob(ctx context.Context, ref protocol.BlobRef) error
}

// Bus carries questions to the processes that answer them.
type Bus interface {
	// Serve answers questions for all clients of the engine until ctx ends: the questions of each verb
	// with its Answerer, up to AnswersAtOnce concurrently. If several processes serve a verb, one of
	// them gets the question. Serve survives reconnects, and when ctx ends it answers the received
	// questions before it returns. A verb is an id.
	Serve(ctx context.Context, verbs map[string]Answerer) error
	// Ask sends a question to a process that serves the verb. A question of more than QuestionBytesMax
	// is refused (a *protocol.Error), and so is one whose answer does not fit a message of the engine.
	// An error of the Answerer comes back in the form of ErrorFromWire. ErrNoAnswer: no process served the
	// verb during the timeout of the engine, or until ctx ended, or no answer came within
	// AnswerTimeMax. Ask retries if the connection breaks, or an answer takes 4 s.
	Ask(ctx context.Context, verb string, question []byte) ([]byte, error)

	// Reconnected receives, coalesced, after a reconnect, also to a different server: hints may have
	// been lost.
	Reconnected(ctx context.Context) <-chan struct{}
}
