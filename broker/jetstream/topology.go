package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// Topology is how the streams stand on the engine. The zero value is one
// replica, everything persisted as the node is configured to.
type Topology struct {
	// Replicas of every stream; 0 is 1. A cluster of three nodes wants 3.
	Replicas int
	// AsyncWork lets work, timers and presence persist asynchronously on a
	// single node that syncs every write of the ledger: 2.5 times the
	// throughput. A power cut may take up to their last 30 s, and their
	// sequences with them, which is why ResetOutbox is then required before
	// anything is served. Ignored with more than one replica. Ledgers of such a
	// node have their appends synced in groups (see docs/decisions/0018-group-commit.md).
	AsyncWork bool
	// Fsync is when the servers sync what they write, by the word of the operator that
	// configured them: FsyncAlways or FsyncInterval. It can't be seen from a
	// connection; it is recorded for who judges. Empty is not known, and changes
	// no record.
	Fsync string
}

// When servers sync what they write: before they acknowledge it, or at an interval.
const (
	FsyncAlways   = "always"
	FsyncInterval = "interval"
)

const (
	// blobAge is twice the age of the ledger: a body is put again, hence young again, when it
	// is referred to at more than half of its age.
	blobAge = 2 * broker.LedgerAge
	// markerAge is how long the engine remembers for watchers that a holder
	// went. A watch that was cut off begins anew, so an hour is ample.
	markerAge = time.Hour
	// duplicateWindow is as short as may be: no message of ours has an id, and
	// a window costs memory and a slow restart.
	duplicateWindow = time.Second
	// neverReached is a MaxMsgsPerSubject that only halves the store's block
	// size, and with it cold reads and cache.
	neverReached = 1 << 40
	// workspaceAppends is how many appends of a workspace are kept: a client that lost the answer
	// to its own finds it among them.
	workspaceAppends = 64
	// workConsumersMax is room for 10,000 agents of four lanes. The engine's
	// own default is 1,000 consumers a stream.
	workConsumersMax = 40_000
)

// Metadata of the ledger stream. It says how the others are to be made again
// when they are lost, by the process that finds out.
const (
	metaReplicas  = "handoff_replicas"
	metaAsyncWork = "handoff_async_work"
	metaFsync     = "handoff_fsync"
	// metaRestored is when the ledger was restored from a backup: from then on it is
	// another one than that from which the backup was made. metaBegan is when that began.
	metaRestored = "handoff_restored_at"
	metaBegan    = "handoff_began_at"
)

// RestoredMetadata returns the metadata of a ledger that is restored from a backup. had is the
// metadata of the stream in the backup, made is when that stream was made, and at is the
// instant of the restore.
func (t Topology) RestoredMetadata(had map[string]string, made, at time.Time) map[string]string {
	metadata := map[string]string{metaBegan: made.UTC().Format(time.RFC3339Nano)}
	maps.Copy(metadata, had) // a ledger may be restored more than once
	maps.Copy(metadata, t.streams(at)[0].Metadata)
	metadata[metaRestored] = at.UTC().Format(time.RFC3339Nano)
	return metadata
}

// ledgerTimes are when a ledger became the one that it is, and when it began.
func ledgerTimes(info *jetstream.StreamInfo) (created, began time.Time) {
	created, began = info.Created.UTC(), info.Created.UTC()
	if restored, err := time.Parse(time.RFC3339Nano, info.Config.Metadata[metaRestored]); err == nil {
		created = restored
	}
	if at, err := time.Parse(time.RFC3339Nano, info.Config.Metadata[metaBegan]); err == nil {
		began = at
	}
	return created, began
}

// streams are all that a Topology consists of. now gives the streams that are
// made anew their first sequence: it only ever grows, so that acknowledgements
// meant for an older stream of the same name hit nothing.
func (t Topology) streams(now time.Time) []jetstream.StreamConfig {
	replicas := max(t.Replicas, 1)
	persist := jetstream.DefaultPersistMode
	if t.AsyncWork && replicas == 1 {
		persist = jetstream.AsyncPersistMode
	}
	first := uint64(now.UnixMicro())
	bucket := func(name string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: "KV_" + name, Subjects: []string{"$KV." + name + ".>"}, Replicas: replicas,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DenyDelete: true, AllowRollup: true,
			AllowDirect: true, AllowMsgTTL: true, SubjectDeleteMarkerTTL: markerAge, Duplicates: duplicateWindow,
		}
	}
	metadata := map[string]string{metaReplicas: strconv.Itoa(replicas), metaAsyncWork: strconv.FormatBool(t.AsyncWork)}
	if t.Fsync != "" {
		metadata[metaFsync] = t.Fsync
	}
	agents, holders := bucket(AgentBucket), bucket(HolderBucket)
	agents.Description = "agents: id to profile"
	holders.Description = "holders: who is present, and with which load"
	holders.PersistMode = persist
	return []jetstream.StreamConfig{
		{
			Name: LedgerStream, Description: "the truth: one subject a handoff, its last message is its head",
			Subjects: []string{ledgerPrefix + ">"}, Replicas: replicas,
			Retention: jetstream.LimitsPolicy, MaxAge: broker.LedgerAge, MaxMsgsPerSubject: neverReached,
			DenyDelete: true, DenyPurge: true, AllowDirect: true, Duplicates: duplicateWindow,
			AllowAtomicPublish: true, // see committer
			Metadata:           metadata,
		},
		{
			Name: WorkStream, Description: "offers in the queues of agents; made again from the ledger when lost",
			Subjects: []string{workPrefix + ">"}, Replicas: replicas, FirstSeq: first, PersistMode: persist,
			Retention: jetstream.WorkQueuePolicy, MaxConsumers: workConsumersMax, AllowDirect: true, Duplicates: duplicateWindow,
		},
		{
			Name: TimerStream, Description: "wake-ups, waiting and due; made again from the ledger when lost",
			Subjects: []string{timerPrefix + ">", duePrefix + ">"}, Replicas: replicas, FirstSeq: first, PersistMode: persist,
			Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowRollup: true, AllowDirect: true, Duplicates: duplicateWindow,
		},
		agents,
		holders,
		{
			Name: blobStream, Description: "packages and results over the inline limit, by digest",
			Subjects: []string{blobPrefix + "C.>", blobPrefix + "M.>"}, Replicas: replicas,
			Discard: jetstream.DiscardNew, AllowRollup: true, MaxAge: blobAge, Duplicates: duplicateWindow,
			// No direct gets: a body that was just put must be found, whichever
			// replica would have answered.
		},
		{
			Name: WorkspaceStream, Description: "what the handoffs of a workflow share: one subject a workflow, its last message is its head",
			Subjects: []string{workspacePrefix + "*"}, Replicas: replicas, MaxMsgsPerSubject: workspaceAppends,
			MaxAge: broker.LedgerAge, DenyDelete: true, DenyPurge: true, Duplicates: duplicateWindow,
		},
	}
}

// EnsureTopology makes the streams that are missing and strengthens those that
// stand. It never weakens one: replicas and ages only grow, retention, storage
// and persistence stay, and what an operator set beyond that is left alone. It
// may be called by any number of processes at once and again at any time. What
// fails in passing (a cluster that still elects) it tries again until ctx ends, and for
// 30 s at most where ctx has no deadline.
func EnsureTopology(ctx context.Context, nc *nats.Conn, t Topology) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	// A cluster that has just started may have a leader and miss a peer.
	patience := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(10*time.Second))
	return backoff.Retry(func() error {
		err := ensureTopology(ctx, js, t)
		if err != nil && !hasCode(err, codeNoPeers) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(patience, ctx))
}

func ensureTopology(ctx context.Context, js jetstream.JetStream, t Topology) error {
	for _, want := range t.streams(time.Now()) {
		if err := retryWhileTemporary(ctx, js, func(ctx context.Context) error { _, err := ensureStream(ctx, js, want); return err }); err != nil {
			return err
		}
	}
	return retryWhileTemporary(ctx, js, func(ctx context.Context) error { return putSentinel(ctx, js) })
}

// settlePatience is how long a cluster may take to be able to make streams, for callers
// that do not say how long.
const settlePatience = 30 * time.Second

// retryWhileTemporary repeats op while its error is temporary.
func retryWhileTemporary(ctx context.Context, js jetstream.JetStream, op func(context.Context) error) error {
	var denied denials
	defer denied.follow(js.Conn())()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settlePatience)
		defer cancel()
	}
	return backoff.Retry(func() error {
		try, cancel := context.WithTimeout(ctx, broker.TimeoutDefault)
		defer cancel()
		err := denied.watchWhile(try, js.Conn(), "", op)
		if err != nil && (!isTemporary(err) || ctx.Err() != nil) {
			return backoff.Permanent(err)
		}
		return err
	}, newBackOff(ctx))
}

// ensureOutboxStreams makes the streams again that may be deleted at any time, as the
// ledger's metadata says, and returns when each was made that was missing.
func ensureOutboxStreams(ctx context.Context, js jetstream.JetStream) (made map[string]time.Time, err error) {
	ledger, err := js.Stream(ctx, LedgerStream)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", LedgerStream, err)
	}
	meta := ledger.CachedInfo().Config.Metadata
	t := Topology{Replicas: ledger.CachedInfo().Config.Replicas, AsyncWork: meta[metaAsyncWork] == "true"}
	made = map[string]time.Time{}
	for _, want := range t.streams(time.Now()) {
		if want.Name != WorkStream && want.Name != TimerStream {
			continue
		}
		created, err := ensureStream(ctx, js, want)
		if err != nil {
			return made, err
		}
		if !created.IsZero() {
			made[want.Name] = created
		}
	}
	return made, putSentinel(ctx, js)
}

// ensureStream returns when the stream was made, if it was missing and this made it.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (created time.Time, err error) {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = js.CreateStream(ctx, want)
		if err == nil {
			return stream.CachedInfo().Created, nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return time.Time{}, wrapStream("create", want.Name, err)
		}
		stream, err = js.Stream(ctx, want.Name) // another process was first
	}
	if err != nil {
		return time.Time{}, wrapStream("read", want.Name, err)
	}
	have := stream.CachedInfo().Config
	merged, err := strongerConfig(have, want)
	if err != nil {
		return time.Time{}, err
	}
	if reflect.DeepEqual(have, merged) {
		return time.Time{}, nil
	}
	_, err = js.UpdateStream(ctx, merged)
	return time.Time{}, wrapStream("update", want.Name, err)
}

// strongerConfig returns what stands with all that want adds to it.
func strongerConfig(have, want jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	if have.Retention != want.Retention {
		return have, fmt.Errorf("stream %s has retention %v, and Handoff needs %v: it is not ours to change", have.Name, have.Retention, want.Retention)
	}
	if want.Replicas > 1 && have.PersistMode == jetstream.AsyncPersistMode {
		return have, fmt.Errorf("stream %s persists asynchronously, which the engine allows one replica only: delete it (nats stream rm %s) and try again; it is filled again from the ledger", have.Name, have.Name)
	}
	out := have
	out.Replicas = max(have.Replicas, want.Replicas)
	if have.MaxAge != 0 && (want.MaxAge == 0 || want.MaxAge > have.MaxAge) {
		out.MaxAge = want.MaxAge
	}
	out.DenyDelete = have.DenyDelete || want.DenyDelete
	out.DenyPurge = have.DenyPurge || want.DenyPurge
	out.AllowAtomicPublish = have.AllowAtomicPublish || want.AllowAtomicPublish && have.PersistMode != jetstream.AsyncPersistMode
	out.AllowMsgTTL = have.AllowMsgTTL || want.AllowMsgTTL
	out.AllowMsgSchedules = have.AllowMsgSchedules || want.AllowMsgSchedules
	out.SubjectDeleteMarkerTTL = max(have.SubjectDeleteMarkerTTL, want.SubjectDeleteMarkerTTL)
	out.Subjects = want.Subjects
	if want.Metadata != nil {
		out.Metadata = map[string]string{}
		for k, v := range have.Metadata {
			out.Metadata[k] = v
		}
		for k, v := range want.Metadata {
			out.Metadata[k] = v
		}
		out.Metadata[metaReplicas] = strconv.Itoa(out.Replicas)
	}
	return out, nil
}

func wrapStream(what, name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s stream %s: %w", what, name, err)
	}
	return nil
}

// putSentinel puts the first message of the work stream, unless it stands.
func putSentinel(ctx context.Context, js jetstream.JetStream) error {
	msg := nats.NewMsg(sentinelSubject)
	msg.Data = []byte("no consumer covers this message; see sentinelSubject in package broker")
	_, err := js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
	if isConflict(err) {
		return nil
	}
	return wrapStream("put the sentinel of", WorkStream, err)
}

// pushBy is how far ResetOutbox moves a sequence on. No 30 s of unsynced writes
// hold as many messages.
const pushBy = 1_000_000

// ResetOutbox empties the work and timer streams and advances their sequences.
// Acknowledgements from before a crash then match no message. It is for a node that persists
// these streams asynchronously and was not stopped cleanly, before it serves any client.
// Afterwards the caller fills them again from the ledger. Missing streams are left alone.
func ResetOutbox(ctx context.Context, js jetstream.JetStream) error {
	for _, name := range []string{WorkStream, TimerStream} {
		stream, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return wrapStream("read", name, err)
		}
		// The clock moves the sequence on as well, should the end of the
		// stream be lost with the state that knew how far it had come.
		next := max(stream.CachedInfo().State.LastSeq+pushBy, uint64(time.Now().UnixMicro()))
		if err := stream.Purge(ctx, jetstream.WithPurgeSequence(next)); err != nil {
			return wrapStream("purge", name, err)
		}
		info, err := stream.Info(ctx)
		if err != nil {
			return wrapStream("read", name, err)
		}
		if info.State.LastSeq+1 < next || info.State.Msgs > 0 {
			return fmt.Errorf("stream %s: the engine purged to sequence %d with %d messages left, not to %d with none", name, info.State.LastSeq, info.State.Msgs, next)
		}
	}
	if _, err := js.Stream(ctx, WorkStream); err != nil {
		return nil
	}
	return putSentinel(ctx, js)
}

// StreamStatus is how one stream stands, for people.
type StreamStatus struct {
	Name     string        `json:"name"`
	Missing  bool          `json:"missing,omitempty"`
	Replicas int           `json:"replicas"`
	Persist  string        `json:"persist"` // "default" or "async"
	MaxAge   time.Duration `json:"max_age,omitempty"`
	Messages uint64        `json:"messages"`
	Bytes    uint64        `json:"bytes"`
	FirstSeq uint64        `json:"first_seq"`
	LastSeq  uint64        `json:"last_seq"`
	Leader   string        `json:"leader,omitempty"` // in a cluster
	Created  time.Time     `json:"created"`
}

// ShowTopology reads how all streams stand, in the order they are made in.
func ShowTopology(ctx context.Context, js jetstream.JetStream) ([]StreamStatus, error) {
	var all []StreamStatus
	var denied denials
	defer denied.follow(js.Conn())()
	for _, want := range (Topology{}).streams(time.Now()) {
		err := retryUntilDone(ctx, func(ctx context.Context) error {
			return denied.watchWhile(ctx, js.Conn(), "", func(ctx context.Context) error {
				stream, err := js.Stream(ctx, want.Name)
				if err == nil {
					all = append(all, statusOf(stream.CachedInfo()))
				}
				return err
			})
		})
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			all = append(all, StreamStatus{Name: want.Name, Missing: true})
		case err != nil:
			return nil, wrapStream("read", want.Name, err)
		}
	}
	return all, nil
}

// retryUntilDone asks, and again while that fails in passing, until ctx ends. Each try has
// tryTimeout: a question that is lost with a leader has no answer, however long it waits.
func retryUntilDone(ctx context.Context, op func(context.Context) error) error {
	return backoff.Retry(func() error {
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		err := op(try)
		if err != nil && !isTemporary(err) {
			return backoff.Permanent(err)
		}
		return err
	}, newBackOff(ctx))
}

func statusOf(info *jetstream.StreamInfo) StreamStatus {
	s := StreamStatus{Name: info.Config.Name, Replicas: info.Config.Replicas, Persist: "default", MaxAge: info.Config.MaxAge,
		Messages: info.State.Msgs, Bytes: info.State.Bytes, FirstSeq: info.State.FirstSeq, LastSeq: info.State.LastSeq, Created: info.Created}
	if info.Config.PersistMode == jetstream.AsyncPersistMode {
		s.Persist = "async"
	}
	if info.Cluster != nil {
		s.Leader = info.Cluster.Leader
	}
	return s
}
