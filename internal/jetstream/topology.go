package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Topology describes the streams on the engine. The zero value means one replica, with the node's
// configured persistence.
type Topology struct {
	// Replicas of every stream; 0 is 1. A cluster of three nodes should have 3.
	Replicas int
	// Partitions is the number of ledger, work and timer streams, up to broker.PartitionsMax; 0 is as now,
	// and 1 for a new ledger. Partitions are only added.
	Partitions int
	// GrowAfter is the time until added partitions of a ledger in use are used; 0 is 150 s. A shorter one
	// is only for a caller that knows that no other process uses the ledger.
	GrowAfter time.Duration
	// AsyncWork lets work, timers and presence persist asynchronously on a single node that syncs every
	// write of the ledger: 2.5 times the throughput. A power cut may lose up to their last 30 s, and
	// their sequences with them, so ResetOutbox is then required before any client is served. Ignored
	// with more than one replica.
	AsyncWork bool
	// Fsync is when the servers sync their writes, as declared by the operator that configured them:
	// FsyncAlways or FsyncInterval. A connection cannot find out; the value is recorded for diagnosis.
	// Empty is unknown, and changes no record. With FsyncAlways appends to a ledger of one replica are
	// synced in groups.
	Fsync string
}

// memoryOutbox reports whether work and timers are in memory: on an operator's single server that
// syncs every write, because each would cost a sync. They are lost with the server's process, and
// recreated (recreatedStreams). Our own node uses AsyncWork instead.
func (t Topology) memoryOutbox() bool {
	return t.Fsync == FsyncAlways && !t.AsyncWork && t.Replicas <= 1
}

// When servers sync writes: before they acknowledge them, or at an interval.
const (
	FsyncAlways   = "always"
	FsyncInterval = "interval"
)

const (
	// blobAge is twice the age of the ledger: a body that is referred to at more than half of that age
	// is stored again, which renews its age.
	blobAge = 2 * broker.LedgerAge
	// markerAge is how long the engine keeps the marker of a removed holder for watchers. An
	// interrupted watch starts over, so an hour is ample.
	markerAge = time.Hour
	// duplicateWindow is as short as possible: our messages have no ids, and a window costs memory and
	// a slow restart.
	duplicateWindow = time.Second
	// neverReached is a MaxMsgsPerSubject that only halves the store's block
	// size, and with it cold reads and cache.
	neverReached = 1 << 40
	// workspaceAppends is how many appends of a workspace are kept: a client that lost the answer to
	// its append finds it among them.
	workspaceAppends = 64
	// workConsumersMax allows 10,000 agents with four lanes. The engine's default is 1,000 consumers
	// per stream.
	workConsumersMax = 40_000
)

// Metadata of the ledger stream. It records how the others are recreated when they are lost, by the
// process that notices it.
const (
	metaReplicas  = "handoff_replicas"
	metaAsyncWork = "handoff_async_work"
	metaFsync     = "handoff_fsync"
	// metaRestored is when the ledger was restored from a backup: since then it is another ledger than
	// the one in the backup. metaBegan is when that one began.
	metaRestored = "handoff_restored_at"
	metaBegan    = "handoff_began_at"
	// metaAccepted are the entries that the ledger has lost and whose loss a person has accepted.
	metaAccepted = "handoff_accepted_loss"
)

// RestoredMetadata returns the metadata of a ledger stream that is restored from a backup. had is the
// metadata of the stream in the backup, made is the creation time of that stream, and at is the
// time of the restore.
func (t Topology) RestoredMetadata(stream string, had map[string]string, made, at time.Time) map[string]string {
	metadata := map[string]string{metaBegan: made.UTC().Format(time.RFC3339Nano)}
	maps.Copy(metadata, had) // a ledger may be restored more than once
	if stream == LedgerStream {
		maps.Copy(metadata, t.streams(at)[0].Metadata)
	}
	metadata[metaRestored] = at.UTC().Format(time.RFC3339Nano)
	return metadata
}

// AcceptLoss records that a person has accepted the loss of entries. Since then the ledger is
// another one: indexes start over, and older witnesses do not count.
func AcceptLoss(ctx context.Context, nc *nats.Conn, lost []broker.Range, at time.Time) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	t, err := topologyOf(ctx, js)
	if err != nil {
		return err
	}
	for p := max(t.Partitions, 1) - 1; p >= 0; p-- { // the first one, which identifies the ledger, comes last
		of := broker.Within(lost, broker.PartitionBase(p), broker.PartitionBase(p+1)-1)
		if p > 0 && len(of) == 0 {
			continue
		}
		if err := acceptLoss(ctx, js, ledgerStreams[p], of, at); err != nil {
			return err
		}
	}
	return nil
}

// acceptLoss is AcceptLoss for one partition.
func acceptLoss(ctx context.Context, js jetstream.JetStream, name string, lost []broker.Range, at time.Time) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return wrapStream("read", name, err)
	}
	info := stream.CachedInfo()
	cfg := info.Config
	_, began, accepted := LedgerIdentity(info.Created, cfg.Metadata)
	all, err := json.Marshal(broker.MergeRanges(append(accepted, lost...)))
	if err != nil {
		return err
	}
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	cfg.Metadata[metaBegan] = began.Format(time.RFC3339Nano)
	cfg.Metadata[metaRestored], cfg.Metadata[metaAccepted] = at.UTC().Format(time.RFC3339Nano), string(all)
	_, err = js.UpdateStream(ctx, cfg)
	return wrapStream("accept the loss in", name, err)
}

// LedgerIdentity returns the times at which a ledger was created or restored, and at which it
// began. accepted are the entries whose loss was accepted; made is the creation time of its stream.
func LedgerIdentity(made time.Time, metadata map[string]string) (created, began time.Time, accepted []broker.Range) {
	created, began = made.UTC(), made.UTC()
	if restored, err := time.Parse(time.RFC3339Nano, metadata[metaRestored]); err == nil {
		created = restored
	}
	if at, err := time.Parse(time.RFC3339Nano, metadata[metaBegan]); err == nil {
		began = at
	}
	if err := json.Unmarshal([]byte(metadata[metaAccepted]), &accepted); err != nil {
		accepted = nil
	}
	return created, began, accepted
}

// streams returns the streams of a Topology. now determines the first sequence of newly created
// streams: it only grows, so that acknowledgements for an older stream of the same name match no
// message.
func (t Topology) streams(now time.Time) []jetstream.StreamConfig {
	replicas := max(t.Replicas, 1)
	persist := jetstream.DefaultPersistMode
	if t.AsyncWork && replicas == 1 {
		persist = jetstream.AsyncPersistMode
	}
	outbox := jetstream.FileStorage
	if t.memoryOutbox() {
		outbox = jetstream.MemoryStorage
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
	holders.PersistMode, holders.FirstSeq = persist, holderFirstSeq(now)
	all := []jetstream.StreamConfig{
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
			Subjects: []string{workPrefix + ">"}, Replicas: replicas, FirstSeq: first, PersistMode: persist, Storage: outbox,
			Retention: jetstream.WorkQueuePolicy, MaxConsumers: workConsumersMax, AllowDirect: true, Duplicates: duplicateWindow,
		},
		{
			Name: TimerStream, Description: "wake-ups, waiting and due; made again from the ledger when lost",
			Subjects: []string{timerPrefix + ">", duePrefix + ">"}, Replicas: replicas, FirstSeq: first, PersistMode: persist, Storage: outbox,
			Retention: jetstream.WorkQueuePolicy, AllowMsgSchedules: true, AllowRollup: true, AllowDirect: true, Duplicates: duplicateWindow,
		},
		agents,
		holders,
		{
			Name: blobStream, Description: "packages and results over the inline limit, by digest",
			Subjects: []string{blobPrefix + "C.>", blobPrefix + "M.>"}, Replicas: replicas,
			Discard: jetstream.DiscardNew, AllowRollup: true, MaxAge: blobAge, Duplicates: duplicateWindow,
			// No direct gets: a newly stored body must be found, and a replica that answers may not have it
			// yet.
		},
		{
			Name: WorkspaceStream, Description: "variables and locks of workflows: one subject a workflow, its last message is its head",
			Subjects: []string{workspacePrefix + "*"}, Replicas: replicas, MaxMsgsPerSubject: workspaceAppends,
			MaxAge: broker.LedgerAge, DenyDelete: true, DenyPurge: true, Duplicates: duplicateWindow,
		},
		{
			Name: SignalStream, Description: "signals that no supervisor has turned into handoffs yet",
			Subjects: []string{signalPrefix + "*"}, Replicas: replicas, FirstSeq: first,
			Retention: jetstream.WorkQueuePolicy, MaxAge: broker.SignalAge, MaxMsgSize: protocol.SignalBytesMax + signalHeadersMax,
			MaxMsgs: broker.SignalsMax, MaxMsgsPerSubject: broker.SignalsOfNameMax, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
			Duplicates: broker.SignalTwice,
		},
	}
	for p := 1; p < t.Partitions; p++ {
		ledger, work, timers := all[0], all[1], all[2]
		ledger.Name, ledger.Subjects, ledger.FirstSeq, ledger.Metadata = ledgerStreams[p], []string{ledgerPrefixes[p] + ">"}, broker.PartitionBase(p)+1, nil
		work.Name, work.Subjects = workStreams[p], []string{workPrefixes[p] + ">"}
		timers.Name, timers.Subjects = timerStreams[p], []string{timerPrefixes[p] + ">", duePrefixes[p] + ">"}
		all = append(all, ledger, work, timers)
	}
	return all
}

// checkPartitions refuses an impossible number of partitions.
func (t Topology) checkPartitions() error {
	if t.Partitions < 0 || t.Partitions > broker.PartitionsMax {
		return protocol.Errorf(protocol.CodeInvalid, "partitions", "must be 1 to %d, not %d", broker.PartitionsMax, t.Partitions)
	}
	return nil
}

// Prepare creates the streams as EnsureTopology does. It fits a node's Config.Prepare.
func (t Topology) Prepare(ctx context.Context, nc *nats.Conn, _ bool) error {
	return EnsureTopology(ctx, nc, t)
}

// EnsureTopology creates the missing streams and strengthens the existing ones. It never weakens
// one: replicas and ages only grow, retention, storage and persistence are kept, and so are other
// settings of an operator. It may be called by several processes at once, and repeatedly. It
// retries temporary errors (a cluster that still elects) until ctx ends, and for 30 s at most if
// ctx has no deadline.
func EnsureTopology(ctx context.Context, nc *nats.Conn, t Topology) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	// A cluster that has just started may have a leader and lack a peer.
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
	streams, err := t.wanted(ctx, js)
	if err != nil {
		return err
	}
	if t.Partitions > 1 { // the map of the others comes last
		streams = append(streams[1:], streams[0])
	}
	for _, want := range streams {
		if err := retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error { return ensureStream(ctx, js, want) }); err != nil {
			return err
		}
	}
	for p := range max(t.Partitions, 1) {
		if err := retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error { return putSentinel(ctx, js, p) }); err != nil {
			return err
		}
	}
	return nil
}

// wanted returns the streams, with the map of the partitions if that changes.
func (t *Topology) wanted(ctx context.Context, js jetstream.JetStream) (streams []jetstream.StreamConfig, err error) {
	err = retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error {
		grown, err := t.grow(ctx, js)
		if err != nil {
			return err
		}
		if streams = t.streams(time.Now()); grown != "" {
			streams[0].Metadata[metaPartitions] = grown
		}
		return nil
	})
	return streams, err
}

// grow sets t.Partitions to the number that there are, if it is 0, and returns the map for the metadata
// if that changes.
func (t *Topology) grow(ctx context.Context, js jetstream.JetStream) (string, error) {
	if err := t.checkPartitions(); err != nil {
		return "", err
	}
	stream, err := js.Stream(ctx, LedgerStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if t.Partitions <= 1 {
			return "", nil
		}
		return partitionsIn(nil, time.Time{}).grown(t.Partitions, time.Time{})
	}
	if err != nil {
		return "", wrapStream("read", LedgerStream, err)
	}
	info := stream.CachedInfo()
	m := partitionsIn(info.Config.Metadata, time.Time{})
	if t.Partitions = cmp.Or(t.Partitions, m.count()); t.Partitions == m.count() {
		return "", nil
	}
	now := info.TimeStamp
	if newest := m.generations[len(m.generations)-1].From; newest.After(now) {
		return "", protocol.Errorf(protocol.CodeConflict, "partitions", "were added a moment ago, and are used from %s on; add more after that", newest.Format(time.RFC3339))
	}
	return m.grown(t.Partitions, now.Add(cmp.Or(t.GrowAfter, GrowAfter)))
}

// settlePatience is how long a cluster may take until it can create streams, if ctx has no
// deadline.
const settlePatience = 30 * time.Second

// retryWhileTemporary is retryUntilDone for at most settlePatience, if ctx has no deadline. An op
// that the engine denies ends early.
func retryWhileTemporary(ctx context.Context, js jetstream.JetStream, each time.Duration, op func(context.Context) error) error {
	var denied denials
	defer denied.follow(js.Conn())()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settlePatience)
		defer cancel()
	}
	return retryUntilDone(ctx, each, func(ctx context.Context) error { return denied.watchWhile(ctx, js.Conn(), "", op) })
}

// ensureStream creates the stream, or strengthens the existing one.
func ensureStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) error {
	stream, _, err := makeMissing(ctx, js, want)
	if err != nil {
		return err
	}
	have := stream.CachedInfo().Config
	merged, err := strongerConfig(have, want)
	if err != nil {
		return err
	}
	if reflect.DeepEqual(have, merged) {
		return nil
	}
	_, err = js.UpdateStream(ctx, merged)
	return wrapStream("update", want.Name, err)
}

// strongerConfig returns the configuration have with all that want adds to it.
func strongerConfig(have, want jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	if have.Retention != want.Retention {
		return have, fmt.Errorf("stream %s has retention %v, and Handoff needs %v: Handoff does not change it", have.Name, have.Retention, want.Retention)
	}
	if want.Replicas > 1 && have.PersistMode == jetstream.AsyncPersistMode {
		return have, fmt.Errorf("stream %s persists asynchronously, which the engine allows one replica only: delete it (nats stream rm %s) and try again; it is refilled from the ledger", have.Name, have.Name)
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
		maps.Copy(out.Metadata, have.Metadata)
		maps.Copy(out.Metadata, want.Metadata)
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

// putSentinel stores the first message of a work stream, unless it exists.
func putSentinel(ctx context.Context, js jetstream.JetStream, p int) error {
	msg := nats.NewMsg(workPrefixes[p] + sentinel)
	msg.Data = []byte("no consumer covers this message; see sentinel in package jetstream")
	_, err := js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
	if isConflict(err) {
		return nil
	}
	return wrapStream("put the sentinel of", workStreams[p], err)
}

// pushBy is how far ResetOutbox advances a sequence: more messages than can be written in 30 s
// without a sync.
const pushBy = 1_000_000

// ResetOutbox empties the work and timer streams and advances their sequences. Acknowledgements
// from before a crash then match no message. It is for a node that persists these streams
// asynchronously and was not stopped cleanly, before it serves any client. Afterwards the caller
// refills them from the ledger. Missing streams are skipped.
func ResetOutbox(ctx context.Context, js jetstream.JetStream) error {
	t, err := topologyOf(ctx, js)
	if err != nil {
		return err
	}
	n := max(t.Partitions, 1)
	for _, name := range slices.Concat(workStreams[:n], timerStreams[:n]) {
		stream, err := js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return wrapStream("read", name, err)
		}
		// The clock advances the sequence as well, in case the end of the stream is lost together with its
		// sequence.
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
	for p, name := range workStreams[:n] {
		if _, err := js.Stream(ctx, name); err != nil {
			continue
		}
		if err := putSentinel(ctx, js, p); err != nil {
			return err
		}
	}
	return nil
}

// StreamStatus is the status of one stream, for display.
type StreamStatus struct {
	Name     string        `json:"name"`
	Missing  bool          `json:"missing,omitempty"`
	Replicas int           `json:"replicas"`
	Persist  string        `json:"persist"` // "default", "async" or "memory"
	MaxAge   time.Duration `json:"max_age,omitempty"`
	Messages uint64        `json:"messages"`
	Bytes    uint64        `json:"bytes"`
	FirstSeq uint64        `json:"first_seq"`
	LastSeq  uint64        `json:"last_seq"`
	Leader   string        `json:"leader,omitempty"` // only in a cluster
	Created  time.Time     `json:"created"`
}

// ShowTopology reads the status of all streams, in the order of their creation.
func ShowTopology(ctx context.Context, js jetstream.JetStream) ([]StreamStatus, error) {
	var all []StreamStatus
	var t Topology
	if err := retryWhileTemporary(ctx, js, tryTimeout, func(ctx context.Context) (err error) {
		t, err = topologyOf(ctx, js)
		return err
	}); err != nil {
		return nil, err
	}
	for _, want := range t.streams(time.Now()) {
		err := retryWhileTemporary(ctx, js, tryTimeout, func(ctx context.Context) error {
			stream, err := js.Stream(ctx, want.Name)
			if err == nil {
				all = append(all, statusOf(stream.CachedInfo()))
			}
			return err
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

// retryUntilDone retries op while its error is temporary, until ctx ends. Each try has its own
// timeout: a request that is lost with a leader never gets an answer.
func retryUntilDone(ctx context.Context, each time.Duration, op func(context.Context) error) error {
	return backoff.Retry(func() error {
		try, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		err := op(try)
		if err != nil && (!isTemporary(err) || ctx.Err() != nil) {
			return backoff.Permanent(err)
		}
		return err
	}, newBackOff(ctx))
}

func statusOf(info *jetstream.StreamInfo) StreamStatus {
	s := StreamStatus{Name: info.Config.Name, Replicas: info.Config.Replicas, Persist: "default", MaxAge: info.Config.MaxAge,
		Messages: info.State.Msgs, Bytes: info.State.Bytes, FirstSeq: info.State.FirstSeq, LastSeq: info.State.LastSeq, Created: info.Created}
	switch {
	case info.Config.Storage == jetstream.MemoryStorage:
		s.Persist = "memory"
	case info.Config.PersistMode == jetstream.AsyncPersistMode:
		s.Persist = "async"
	}
	if info.Cluster != nil {
		s.Leader = info.Cluster.Leader
	}
	return s
}

// StreamPlan is the change that EnsureTopology would make to one stream.
type StreamPlan struct {
	Stream   string   `json:"stream"`
	Missing  bool     `json:"missing,omitempty"` // it is to be created
	Replicas int      `json:"replicas"`          // after the change
	Stronger []string `json:"stronger,omitempty"`
	// Weaker are the requested settings that are weaker than the existing ones, which are kept.
	Weaker []string `json:"weaker,omitempty"`
	// Leader is the server that leads it from now on, if it is to move (SpreadLeaders).
	Leader string `json:"leader,omitempty"`
}

// PlanTopology returns the changes that EnsureTopology would make, and makes none. Replicas 0 means
// the number that each stream has, and 1 for missing streams. It is an error if a stream with one
// of our names may not be changed.
func PlanTopology(ctx context.Context, nc *nats.Conn, t Topology) ([]StreamPlan, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	streams, err := t.wanted(ctx, js)
	if err != nil {
		return nil, err
	}
	var all []StreamPlan
	for _, want := range streams {
		plan := StreamPlan{Stream: want.Name, Replicas: want.Replicas}
		err := retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error {
			stream, err := js.Stream(ctx, want.Name)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				plan.Missing = true
				return nil
			}
			if err != nil {
				return wrapStream("read", want.Name, err)
			}
			have := stream.CachedInfo().Config
			merged, err := strongerConfig(have, want)
			if err != nil {
				return err
			}
			plan.Replicas, plan.Stronger = merged.Replicas, strongerWords(have, merged)
			if t.Replicas > 0 && have.Replicas > t.Replicas {
				plan.Weaker = append(plan.Weaker, fmt.Sprintf("replicas %d, and %d were requested", have.Replicas, t.Replicas))
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, plan)
	}
	return all, nil
}

// ReadTopology reads the existing topology from the ledger's metadata; the zero Topology if there
// is no ledger. It retries while no server answers, until ctx ends: a cluster that has just elected
// its first leader may drop a request.
func ReadTopology(ctx context.Context, nc *nats.Conn) (Topology, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return Topology{}, err
	}
	for {
		try, cancel := context.WithTimeout(ctx, standsPatience)
		t, err := topologyOf(try, js)
		unheard := try.Err() != nil
		cancel()
		if err == nil || !unheard || ctx.Err() != nil {
			return t, err
		}
	}
}

// standsPatience is the timeout of one request for the topology, which takes milliseconds.
const standsPatience = 3 * time.Second

// strongerWords describes the changes of strongerConfig.
func strongerWords(have, merged jetstream.StreamConfig) (words []string) {
	for _, d := range []struct {
		what     string
		from, to any
	}{
		{"replicas", have.Replicas, merged.Replicas},
		{"subjects", strings.Join(have.Subjects, " "), strings.Join(merged.Subjects, " ")},
		{"kept for", have.MaxAge, merged.MaxAge},
		{"messages can't be deleted", have.DenyDelete, merged.DenyDelete},
		{"can't be purged", have.DenyPurge, merged.DenyPurge},
		{"atomic batches", have.AllowAtomicPublish, merged.AllowAtomicPublish},
		{"messages that expire", have.AllowMsgTTL, merged.AllowMsgTTL},
		{"delayed messages", have.AllowMsgSchedules, merged.AllowMsgSchedules},
		{"markers of expired messages kept for", have.SubjectDeleteMarkerTTL, merged.SubjectDeleteMarkerTTL},
		{"partitions", partitionsIn(have.Metadata, time.Time{}).count(), partitionsIn(merged.Metadata, time.Time{}).count()},
		{"synced", cmp.Or(have.Metadata[metaFsync], "unknown"), cmp.Or(merged.Metadata[metaFsync], "unknown")},
	} {
		if d.from != d.to {
			words = append(words, fmt.Sprintf("%s: %v -> %v", d.what, d.from, d.to))
		}
	}
	if len(words) == 0 && !reflect.DeepEqual(have, merged) {
		words = append(words, "description or metadata")
	}
	return words
}

// Streams reads the status of all streams, like ShowTopology.
func (j *Engine) Streams(ctx context.Context) ([]StreamStatus, error) {
	return ShowTopology(ctx, j.js)
}

// Deliveries count the engine's deliveries since its consumers were created, including
// redeliveries.
type Deliveries struct {
	Offers  uint64 // of the agents whose names start with a prefix
	Entries uint64 // of the ledger, to supervisors that count
	WakeUps uint64 // and announcements
}

// Deliveries reads the counts. It requests every consumer of the work streams.
func (j *Engine) Deliveries(ctx context.Context, agentPrefix string) (d Deliveries, err error) {
	for p := range j.partitions() {
		work, err := j.js.Stream(ctx, workStreams[p])
		if err != nil {
			return d, err
		}
		consumers := work.ListConsumers(ctx)
		for info := range consumers.Info() {
			if strings.HasPrefix(info.Name, agentPrefix) {
				d.Offers += info.Delivered.Consumer
			}
		}
		if err := consumers.Err(); err != nil {
			return d, err
		}
		for stream, count := range map[string]*uint64{ledgerStreams[p]: &d.Entries, timerStreams[p]: &d.WakeUps} {
			consumer, err := j.js.Consumer(ctx, stream, SupervisorConsumer)
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				continue
			}
			if err != nil {
				return d, err
			}
			*count += consumer.CachedInfo().Delivered.Consumer
		}
	}
	return d, nil
}
