package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/protocol"
)

// VersionMin is the oldest supported server: delayed messages, which implement wake-ups, came with
// it.
const VersionMin = "2.12.0"

// Diagnosis collects facts about an engine through a connection, for a caller that judges them. A
// request without an answer is in Unanswered, by its name, and its facts are zero.
type Diagnosis struct {
	Server     ServerFacts
	Account    AccountFacts
	Streams    []StreamFacts   // in the order of their creation, including missing ones
	Consumers  []ConsumerFacts // of supervisors and of lanes
	Unanswered map[string]error
}

// ServerFacts are about the server behind the connection, and the way to it.
type ServerFacts struct {
	Name, Version, Cluster string

	RTT time.Duration
	// Ahead is how much the engine's clock is ahead of ours, accurate to Within. Within is zero if
	// unknown.
	Ahead, Within time.Duration
	// Disk is why the disk of one of our nodes refuses writes; otherwise empty.
	Disk string
}

// AccountFacts are about the account of this user; a maximum below 1 is none.
type AccountFacts struct {
	Storage, StorageMax int64
}

// StreamFacts compare the settings of a stream with the required ones.
type StreamFacts struct {
	StreamStatus
	Memory     bool     // it is in memory, and should be on disk
	BytesMax   int64    // below 1 is none
	MessageMax int64    // of all messages
	Drops      bool     // if full, it drops its oldest messages; otherwise it refuses new ones
	Sealed     bool     // it accepts no more messages
	Synced     bool     // the operator has declared that every ledger write is synced
	Weaker     []string // settings weaker than those that Handoff sets, in words
	Behind     []string // replicas that lag or are gone
	Leaderless bool     // in a cluster: no client can write
}

// ConsumerFacts are the facts of two readings of a consumer, a moment apart.
type ConsumerFacts struct {
	Stream, Name  string
	Agent         string            // of a lane
	Lane          protocol.Priority // likewise
	Missing       bool              // supervisors share it, and it is missing
	Pending       uint64            // never delivered
	AckPending    int               // delivered, and not ended
	AckPendingMax int
	Waiting       int      // waiting pulls; the larger of the two readings
	Moved         bool     // a delivery or its end between the two readings
	Paused        bool     // it delivers nothing
	Odd           []string // settings that differ from those that Handoff sets, in words
}

const (
	// diagnosePatience is the timeout of each request.
	diagnosePatience = 5 * time.Second
	// betweenSights is the time between the two readings of consumers. A pull that finds an offer is
	// answered within milliseconds.
	betweenSights = 700 * time.Millisecond
)

// Diagnose requests all facts about the engine from a server, except for the named groups (streams,
// clock, consumers). Consumers are read twice, 0.7 s apart. It fails only if ctx ends.
func Diagnose(ctx context.Context, nc *nats.Conn, without ...string) (Diagnosis, error) {
	d := Diagnosis{Unanswered: map[string]error{}}
	js, err := jetstream.New(nc)
	if err != nil {
		return d, err
	}
	x := &examination{nc: nc, js: js, d: &d}
	x.ask(ctx, "server", x.server)
	x.ask(ctx, "account", x.account)
	if d.Unanswered["account"] != nil { // no JetStream, or none for this user: the other requests would only time out
		return d, ctx.Err()
	}
	for _, q := range []struct {
		name string
		ask  func(context.Context) error
	}{{"streams", x.streams}, {"clock", x.clock}, {"consumers", x.consumers}} {
		if !slices.Contains(without, q.name) {
			x.ask(ctx, q.name, q.ask)
		}
	}
	return d, ctx.Err()
}

type examination struct {
	nc *nats.Conn
	js jetstream.JetStream
	d  *Diagnosis
	// partitions is set by consumers.
	partitions int
}

func (x *examination) ask(ctx context.Context, name string, ask func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, diagnosePatience+betweenSights)
	defer cancel()
	if err := ask(ctx); err != nil {
		x.d.Unanswered[name] = err
	}
}

func (x *examination) server(ctx context.Context) error {
	rtt, err := x.nc.RTT()
	for range 2 { // use the fastest: a busy machine is not a long distance
		if again, againErr := x.nc.RTT(); againErr == nil && err == nil {
			rtt = min(rtt, again)
		}
	}
	x.d.Server = ServerFacts{Name: x.nc.ConnectedServerName(), Version: x.nc.ConnectedServerVersion(), Cluster: x.nc.ConnectedClusterName(), RTT: rtt}
	x.d.Server.Disk = AskNode(ctx, x.nc)
	return err
}

func (x *examination) account(ctx context.Context) error {
	info, err := x.js.AccountInfo(ctx)
	if err != nil {
		return err
	}
	x.d.Account = AccountFacts{Storage: int64(info.Store), StorageMax: info.Limits.MaxStore}
	return nil
}

// clock compares the engine's clock with ours, and uses the fastest of a few readings: the engine
// stamped the answer at some time between the request and its arrival.
func (x *examination) clock(ctx context.Context) error {
	const tries = 5
	for range tries {
		asked := time.Now()
		stream, err := x.js.Stream(ctx, LedgerStream)
		if err != nil {
			return err
		}
		r := readingOf(asked, stream.CachedInfo().TimeStamp)
		if s := &x.d.Server; s.Within == 0 || r.within < s.Within {
			s.Ahead, s.Within = r.engine.Sub(r.local), r.within
		}
	}
	return nil
}

func (x *examination) streams(ctx context.Context) error {
	t, err := topologyOf(ctx, x.js)
	if err != nil {
		return err
	}
	for _, want := range t.streams(time.Now()) {
		stream, err := x.js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			x.d.Streams = append(x.d.Streams, StreamFacts{StreamStatus: StreamStatus{Name: want.Name, Missing: true}})
			continue
		}
		if err != nil {
			return wrapStream("read", want.Name, err)
		}
		facts := streamFacts(stream.CachedInfo(), want)
		facts.Synced = t.AsyncWork || t.Fsync == FsyncAlways
		x.d.Streams = append(x.d.Streams, facts)
	}
	return nil
}

// topologyOf reads from the ledger's metadata how the streams were created; the default if the
// ledger does not exist.
func topologyOf(ctx context.Context, js jetstream.JetStream) (Topology, error) {
	ledger, err := js.Stream(ctx, LedgerStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return Topology{}, nil
	}
	if err != nil {
		return Topology{}, wrapStream("read", LedgerStream, err)
	}
	cfg := ledger.CachedInfo().Config
	return Topology{Replicas: cfg.Replicas, AsyncWork: cfg.Metadata[metaAsyncWork] == "true", Fsync: cfg.Metadata[metaFsync],
		Partitions: partitionsIn(cfg.Metadata, time.Time{}).count()}, nil
}

func streamFacts(info *jetstream.StreamInfo, want jetstream.StreamConfig) StreamFacts {
	cfg := info.Config
	f := StreamFacts{
		StreamStatus: statusOf(info),
		Memory:       cfg.Storage == jetstream.MemoryStorage && want.Storage != jetstream.MemoryStorage, BytesMax: cfg.MaxBytes, MessageMax: cfg.MaxMsgs,
		Drops: cfg.Discard == jetstream.DiscardOld, Sealed: cfg.Sealed,
	}
	merged, err := strongerConfig(cfg, want)
	if err != nil {
		f.Weaker = []string{err.Error()}
	}
	for _, d := range differences(cfg, merged) {
		f.Weaker = append(f.Weaker, d.String())
	}
	if c := info.Cluster; c != nil {
		f.Leaderless = c.Leader == "" && cfg.Replicas > 1
		for _, peer := range c.Replicas {
			if peer.Offline || !peer.Current {
				f.Behind = append(f.Behind, peer.Name)
			}
		}
	}
	return f
}

// settingValue formats the value of a field: the engine counts durations in nanoseconds.
func settingValue(field, value string) string {
	if value == "" {
		return "not set"
	}
	switch field {
	case "max_age", "duplicate_window", "subject_delete_marker_ttl", "ack_wait", "inactive_threshold", "max_expires":
		if ns, err := strconv.ParseInt(value, 10, 64); err == nil {
			return time.Duration(ns).String()
		}
	}
	return value
}

// consumers reads all consumers twice: one that is pulled from and does not move is stuck, and a
// live supervisor either has a pull waiting or has just received a message.
func (x *examination) consumers(ctx context.Context) error {
	t, err := topologyOf(ctx, x.js)
	if err != nil {
		return err
	}
	x.partitions = max(t.Partitions, 1)
	first, err := x.listConsumers(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(betweenSights):
	}
	second, err := x.listConsumers(ctx)
	if err != nil {
		return err
	}
	// The consumer on the ledger exists only if a supervisor ever had a Watch.
	for _, name := range timerStreams[:x.partitions] {
		if _, there := second[consumerKey{name, SupervisorConsumer}]; !there {
			x.d.Consumers = append(x.d.Consumers, ConsumerFacts{Stream: name, Name: SupervisorConsumer, Missing: true})
		}
	}
	for key, now := range second {
		x.d.Consumers = append(x.d.Consumers, consumerFacts(key, first[key], now))
	}
	slices.SortFunc(x.d.Consumers, func(a, b ConsumerFacts) int {
		return strings.Compare(a.Stream+" "+a.Name, b.Stream+" "+b.Name)
	})
	return nil
}

type consumerKey struct{ stream, name string }

// listConsumers lists the consumers of all lanes, and those that supervisors share.
func (x *examination) listConsumers(ctx context.Context) (map[consumerKey]*jetstream.ConsumerInfo, error) {
	all := map[consumerKey]*jetstream.ConsumerInfo{}
	for _, name := range slices.Concat(ledgerStreams[:x.partitions], workStreams[:x.partitions], timerStreams[:x.partitions]) {
		stream, err := x.js.Stream(ctx, name)
		if hasCode(err, codeNoStream) {
			continue
		}
		if err != nil {
			return nil, wrapStream("read", name, err)
		}
		list := stream.ListConsumers(ctx)
		for info := range list.Info() {
			_, _, lane := parseLaneConsumer(info.Name)
			if work := BaseOf(name) == WorkStream; work && lane || !work && info.Name == SupervisorConsumer {
				all[consumerKey{name, info.Name}] = info
			}
		}
		if err := list.Err(); err != nil {
			return nil, fmt.Errorf("consumers of %s: %w", name, err)
		}
	}
	return all, nil
}

// consumerFacts combines two readings; the first may be missing.
func consumerFacts(key consumerKey, was, is *jetstream.ConsumerInfo) ConsumerFacts {
	f := ConsumerFacts{
		Stream: key.stream, Name: key.name, Pending: is.NumPending, AckPending: is.NumAckPending, AckPendingMax: is.Config.MaxAckPending,
		Waiting: is.NumWaiting, Moved: was == nil, Paused: is.Paused,
	}
	if was != nil {
		f.Waiting = max(was.NumWaiting, is.NumWaiting)
		f.Moved = was.Delivered.Consumer != is.Delivered.Consumer || was.AckFloor.Consumer != is.AckFloor.Consumer || was.NumAckPending != is.NumAckPending
	}
	ours := jetstream.ConsumerConfig{}
	p := max(slices.Index(ledgerStreams[:], key.stream), slices.Index(workStreams[:], key.stream), slices.Index(timerStreams[:], key.stream))
	switch agent, lane, ok := parseLaneConsumer(key.name); {
	case BaseOf(key.stream) == WorkStream && ok:
		f.Agent, f.Lane = agent, lane
		ours = laneConfig(p, agent, lane, is.Config.AckWait)
	case BaseOf(key.stream) == LedgerStream:
		ours = followConfig(ledgerFollower(p), is.Config.AckWait)
	default:
		ours = followConfig(dueFollower(p), is.Config.AckWait)
	}
	ours.Replicas = is.Config.Replicas                                            // the stream's, if not set
	ours.MaxWaiting, ours.PauseUntil = is.Config.MaxWaiting, is.Config.PauseUntil // checked separately
	for _, d := range consumerDifferences(is.Config, ours) {
		f.Odd = append(f.Odd, d.String())
	}
	return f
}
