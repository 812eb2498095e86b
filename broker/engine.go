package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Sentinels a caller branches on. Engines wrap them.
var (
	// ErrConflict: another append came first; read the head and decide again.
	ErrConflict = errors.New("another append came first")
	// ErrNotFound: the ledger, asked at its leader, has no such thing.
	ErrNotFound = errors.New("not found")
	// ErrLeaseLost: another holder has the claim by now, or none has it.
	ErrLeaseLost = errors.New("lease lost")
	// ErrDeadlinePassed is an ErrLeaseLost: the deadline took the claim from its holder.
	ErrDeadlinePassed error = &clockError{"the deadline passed"}
	// ErrWorkTimeout is an ErrLeaseLost: the work took longer than it may.
	ErrWorkTimeout error = &clockError{"the work timeout passed"}
	// ErrProgressTimeout is an ErrLeaseLost: no progress was reported in time.
	ErrProgressTimeout error = &clockError{"no progress was reported in time"}
	// ErrUnreachable: the engine does not answer.
	ErrUnreachable = errors.New("engine not reachable")
	// ErrClosed: this end has closed its engine, and won't reach it again. It wraps
	// ErrUnreachable.
	ErrClosed = fmt.Errorf("%w: this engine is closed", ErrUnreachable)
	// ErrNotAllowed: the engine let us in, and this user has no permission for a
	// subject. Trying again does not help. The text names both.
	ErrNotAllowed = errors.New("not allowed")
	// ErrNoTopology: a server is there, and has not the streams that handoff topology ensure makes.
	ErrNoTopology = errors.New("the server is not initialised")
	// ErrLedgerChanged: the ledger does not go on where it was read up to. It
	// is another one, has lost its end, or has dropped what comes next for its age.
	ErrLedgerChanged = errors.New("the ledger is not the one that was read")
	// ErrNoAnswer: the engine is there, and no process that would answer (Serve).
	ErrNoAnswer = errors.New("no process answers questions about handoffs")
)

// Entry is one message of the ledger as stored.
type Entry struct {
	Ticket string
	Seq    uint64
	At     time.Time // the engine's time stamp, UTC
	Body   []byte    // a protocol.Record
}

// LedgerInfo says which ledger it is and how far it goes.
type LedgerInfo struct {
	Created time.Time // of the ledger itself, UTC: another ledger has another one
	Began   time.Time // no entry is older; before Created where it was restored from a backup
	First   uint64    // the oldest sequence that it still has, or will have
	Last    uint64    // the newest that it ever had; 0 before the first append
}

// OfferKey names an offer in the queue.
type OfferKey struct {
	Agent    string
	Lane     protocol.Priority
	Ticket   string
	Sequence uint64 // of the ledger append that made the offer
}

// Validate refuses a key that does not make one literal subject of a queue.
func (k OfferKey) Validate() error {
	if err := protocol.CheckID("ticket", k.Ticket); err != nil {
		return err
	}
	if err := protocol.CheckID("agent", k.Agent); err != nil {
		return err
	}
	if !slices.Contains(protocol.Priorities, k.Lane) {
		return protocol.Errorf(protocol.CodeInvalid, "priority", "must be one of %v, not %.64q", protocol.Priorities, string(k.Lane))
	}
	return nil
}

// Delivery is an offer that the queue has given to this process. Exactly one
// of Remove and Release ends it; without either the queue delivers the offer
// again one ack wait (AckWait) after the last Extend. None of the three proves
// ownership: only the ledger does.
type Delivery interface {
	Key() OfferKey
	Body() []byte
	// Remove takes the offer out of the queue.
	Remove() error
	// Release lets the queue deliver the offer again at once, to anybody.
	Release() error
	// Extend restarts the ack wait.
	Extend() error
}

// WakeUp is one that has fired, or the announcement of an append.
type WakeUp struct {
	Ticket string
	Seq    uint64    // it was armed under; of an announcement the append's
	At     time.Time // it was to fire; zero of an announcement
	// Attention is what the announced append calls for; empty is a wake-up that was armed.
	Attention lifecycle.Attention
}

// OutboxEntry is an offer, a wake-up or an announcement. PutOffer takes such an offer, and Arm
// such a wake-up; an announcement is a WakeUp with an Attention, and is due at once.
type OutboxEntry struct {
	Offer OfferKey
	Body  []byte                // nil: a wake-up or an announcement
	Trace protocol.TraceContext // that the offer's message names; zero is none

	WakeUp WakeUp
}

// AckWait is how long the queue keeps an offer that was delivered and neither
// extended nor ended from all others.
const AckWait = 30 * time.Second

// FollowWait is how long a wake-up, an announcement or a ledger entry that was given to a
// supervisor is kept from the others: what a dead supervisor had in its hands is delayed by no
// more. One that is slow has it taken from it too, which is harmless.
const FollowWait = 5 * time.Second

// Engine is the machinery that New makes a Broker of: nine parts, none of which decides.
// JetStream is the one that ships; package brokertest has one in memory for simulation, and
// the conformance suite that both pass. A Broker keeps the parts to itself: a caller that
// needs one takes it as an argument of its own, by the interface that it needs.
//
// All methods of the parts are safe for concurrent use and block until the engine has
// answered or ctx ends. A method that waits and tries again for as long as ctx lives says so;
// the others bridge an election, for its timeout (jetstream.Config.Timeout) at most, and then
// return ErrUnreachable (wrapped). All return ErrClosed once the engine is closed. Channels
// that are returned are not closed when ctx ends.
type Engine interface {
	Clock
	Ledger
	Queue
	Timers
	Directory
	Healths
	Settings
	Workspaces
	Blobs
	Bus
}

// Clock is the engine's time, by which processes whose own clocks differ decide alike.
type Clock interface {
	// Now is the engine's clock, as far as it is known here; it does not block. What is
	// decided goes by it, so that processes whose clocks differ decide alike.
	Now() time.Time
}

// LedgerReader reads what the handoffs' ledger holds; it changes nothing.
type LedgerReader interface {
	// Last reads the head from the stream's leader. It is never older than
	// any append acknowledged before the call, nor than min, which it waits
	// for until ctx ends.
	Last(ctx context.Context, ticket string, min uint64) (Entry, error)
	// Next reads the ticket's first entry with a sequence over after, from
	// the leader.
	Next(ctx context.Context, ticket string, after uint64) (Entry, error)
	// Since reads the first entry that the ledger got at an instant of the engine's
	// clock or later, from the leader. ErrNotFound: it got none.
	Since(ctx context.Context, at time.Time) (Entry, error)
	// Heads calls fn with the last entry of every ticket, in the order of
	// their sequences, up to the ledger's end when the call began. Entries may
	// be overtaken meanwhile; on replicas a ticket may then come twice, its
	// last entry last.
	Heads(ctx context.Context, fn func(Entry) error) error
	// Entries calls fn with every entry from sequence from on, in order, up to the
	// ledger's end when the call began.
	Entries(ctx context.Context, from uint64, fn func(Entry) error) error
	// LedgerInfo reads from the leader how far the ledger goes: no append that was
	// acknowledged before the call has a higher sequence than its Last.
	LedgerInfo(ctx context.Context) (LedgerInfo, error)
	// Tail calls fn with every message of the ledger from sequence from on, in
	// order and without a gap, first what is there and then what comes, until ctx
	// ends; from 0 is the first that it still has. A message that is no entry, and
	// never will be, has no Ticket. It does not try again: where it cannot vouch
	// for the order any more it ends with ErrUnreachable, and the caller begins
	// again behind the last message that it had. It ends with ErrLedgerChanged
	// where there is no such beginning.
	Tail(ctx context.Context, from uint64, fn func(Entry) error) error
}

// Ledger keeps the appends of all handoffs in one order, and tells of new ones.
type Ledger interface {
	LedgerReader
	// Append stores body as the successor of sequence after on the ticket's
	// subject; 0 means the ticket's first. id is the record's. The engine announces the append
	// to the supervisors by its attention, as Announcer says. It does not keep body.
	// Append returns the sequence, or ErrConflict if another append came first. A time-out or a
	// lost connection is tried again until ctx ends; if our own append turns
	// out to have been stored, its sequence is returned. When ctx ends first
	// the append may or may not have happened, and the error wraps ctx.Err().
	Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (seq uint64, err error)
	// Feed hints, best effort, that the ticket has a new head: its sequence. Hints come from
	// the engine that appends, for every append but a ticket's first. They may be missing,
	// late, or coalesced into the latest. stop ends it.
	Feed(ctx context.Context, ticket string) (hints <-chan uint64, stop func(), err error)
	// Follow gives this process its share of all new entries until ctx ends:
	// shared with every other follower, each entry at least once, out of order
	// at times. An entry that done was not called for comes again, to any
	// follower. fn is called from one goroutine and must not block for long;
	// done may be called later and from elsewhere. Supervisors follow only to count:
	// what needs them is announced, and comes with Due.
	Follow(ctx context.Context, fn func(e Entry, done func())) error
}

// Queue holds the offers to each agent until a worker of that agent takes them.
type Queue interface {
	// EnsureQueue makes sure that the agent's queue can be pulled from.
	EnsureQueue(ctx context.Context, agent string) error
	// PutOffer puts an offer into the queue. It is no error if it stands there
	// already. An offer that was removed may be put again (a ghost): claiming drops it.
	// The engine does not keep body.
	PutOffer(ctx context.Context, key OfferKey, body []byte) error
	// RemoveOffer takes an offer out of its queue, delivered or not. It is no error if
	// it does not stand there.
	RemoveOffer(ctx context.Context, key OfferKey) error
	// Offers calls fn with every offer that stands in an agent's queue, or in any where agent is
	// empty, delivered or not. It is for few: with a million of them the engine works for seconds.
	Offers(ctx context.Context, agent string, fn func(OfferKey) error) error
	// OffersBetween calls fn with every offer that still stands of those that were put at from
	// or later and before until, by the engine's clock, in that order, delivered or not.
	OffersBetween(ctx context.Context, from, until time.Time, fn func(key OfferKey, at time.Time) error) error
	// Pull takes up to most offers, and waits up to wait for the first. It
	// returns an empty slice when there was none. On replicas an offer may show
	// a moment after PutOffer, and its lane with it.
	//
	// Of every 8 offers (TurnEvery) that this engine takes for the agent, in one
	// pull or in many, 7 are of the most urgent lane that has any: critical before
	// high before normal before low. The eighth is for the less urgent lanes (weighted fair queueing, 7:1):
	// high, normal and low have it one after another. The lane whose turn it is
	// passes it on, when it has nothing, to the next of the three that has
	// something, and when none has, the turn is one like any other (LaneOrder).
	// So nothing waits for ever behind a steady stream of its betters: where all
	// lanes always have offers, critical gets 21 of 24 (TurnRound) and the others
	// one each, and the first offer of any lane is taken within 24, the n-th
	// within 24 n. The count is this engine's own and begins at none: who opens
	// one for every single offer has the most urgent alone. A lane that was
	// found empty may show a new offer a moment later than it was put. Within
	// one batch the order means nothing.
	Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]Delivery, error)
	// QueueDepth counts the offers that stand in the agent's queue, delivered or not.
	QueueDepth(ctx context.Context, agent string) (int, error)
	// Queues tells how every lane of every queue stands that has any offer, in the
	// order of agents and lanes. Lanes change while it asks, so that two of them
	// may be of different moments. Offers to an agent that is not registered are
	// counted once a worker has pulled for it.
	Queues(ctx context.Context) ([]QueueStatus, error)
	// PublishOutbox is PutOffer and Arm for many, and announces appends: it does not wait for
	// the answer to one before it sends the next. It returns an error for each, nil where it stands.
	PublishOutbox(ctx context.Context, entries []OutboxEntry) []error
}

// Timers wake a handoff when an instant has come, or an append of it is announced.
type Timers interface {
	// Arm sets the ticket's wake-up under sequence seq; one already set under the
	// same sequence is replaced. It fires at or up to 250 ms after at, as a due.
	Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error
	// Due gives this process its share of the wake-ups that have fired and of the
	// announcements, like Follow.
	Due(ctx context.Context, fn func(w WakeUp, done func())) error
	// Settled says that what an append of this process calls for later is done: it is not
	// announced any more. It does not block.
	Settled(ticket string, seq uint64)
}

// Directory knows the agents, the holders that are present, and the slots of agents that
// have a limit.
type Directory interface {
	// PutProfile registers or replaces an agent.
	PutProfile(ctx context.Context, p protocol.Profile) error
	// Profile reads an agent from the leader; ErrNotFound.
	Profile(ctx context.Context, agent string) (protocol.Profile, error)
	// RemoveProfile forgets an agent. Its queue and offers stay.
	RemoveProfile(ctx context.Context, agent string) error
	// Beat registers a holder, or prolongs its presence by its lease.
	Beat(ctx context.Context, h protocol.Holder) error
	// Holder reads a holder from the leader; ErrNotFound when it has expired.
	Holder(ctx context.Context, id string) (protocol.Holder, error)
	// RemoveHolder ends a holder's presence at once.
	RemoveHolder(ctx context.Context, id string) error
	// Slots reads from the leader which handoffs an agent with max_concurrency has in
	// hand, and the revision of that; 0 where it never had any.
	Slots(ctx context.Context, agent string) (slots protocol.Slots, rev uint64, err error)
	// PutSlots replaces them if rev is still their revision, and returns the next;
	// ErrConflict.
	PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error)
	// Directory returns the current snapshot. The first call starts a watch
	// and waits until it has caught up; later calls do not block.
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	// Departures tells of every holder that expired or left, after Directory
	// has it no more. Best effort, as long as ctx lives.
	Departures(ctx context.Context) (<-chan protocol.Holder, error)
}

// Healths keep how the attempts of agents ended of late. A snapshot of the Directory has them, too.
type Healths interface {
	// Health reads from the leader how the attempts of an agent ended of late, and the revision of
	// that; a zero Health where it has none.
	Health(ctx context.Context, agent string) (h protocol.Health, rev uint64, err error)
	// PutHealth replaces it if rev is still its revision, and returns the next; ErrConflict. It
	// expires by itself (HealthTTL).
	PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error)
}

// Settings keep what holds for all agents. A snapshot of the Directory has them, too.
type Settings interface {
	// Fleet reads the settings of the fleet from the leader, and their revision; with 0 none were
	// ever put. Of settings that cannot be read the error is a *protocol.Error.
	Fleet(ctx context.Context) (fleet protocol.Fleet, rev uint64, err error)
	// PutFleet replaces them if rev is still their revision, and returns the next; ErrConflict.
	PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error)
}

// Workspaces keep what the handoffs of a workflow share: a record each, whose last append is its
// head. An engine that keeps none answers with CodeUnsupported (a *protocol.Error).
type Workspaces interface {
	// WorkspaceHead reads the head of a workspace by its id from the leader; ErrNotFound.
	WorkspaceHead(ctx context.Context, id string) (WorkspaceEntry, error)
	// AppendWorkspace stores body as the successor of sequence after; 0 means the first. record is
	// the id of the append. It returns the sequence, or ErrConflict if another append came first.
	// A time-out is tried again; where that was stored after all, its sequence is returned.
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
var ErrNoWorkspaces = protocol.Errorf(protocol.CodeUnsupported, "workspace", "the engine keeps no workspaces: its operator has to make the stream for them")

// Blobs keep the bodies that are too large for an entry or an offer.
type Blobs interface {
	// PutBlob stores a body under its digest; putting it again is harmless.
	PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error)
	// Blob reads a body and checks its digest; ErrNotFound, and a *DamagedBody, which is
	// one, where something else is stored.
	Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error)
}

// Bus carries questions to the processes that answer them.
type Bus interface {
	// Serve answers questions for all clients of the engine until ctx ends: each
	// verb's with its Answerer, up to AnswersAtOnce side by side. Of several who
	// serve a verb one is asked. It survives reconnects, and when ctx ends it
	// answers what has reached it before it returns. A verb is an id.
	Serve(ctx context.Context, verbs map[string]Answerer) error
	// Ask asks a process that serves the verb. A question of more than QuestionBytesMax
	// is refused (a *protocol.Error), and so is one whose answer does not fit a
	// message of the engine. An error of the Answerer comes back as WireError has
	// it. ErrNoAnswer: no process serves the verb for as long as
	// the timeout of the engine, or until ctx ends, or no answer came within
	// AnswerTimeMax. Where the connection breaks, or an answer takes 4 s, it asks again.
	Ask(ctx context.Context, verb string, question []byte) ([]byte, error)

	// Reconnected receives, coalesced, after the connection came back or the
	// server behind it turned out to be another: hints may have been lost.
	Reconnected(ctx context.Context) <-chan struct{}
}
