package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/protocol"
)

// VersionMin is the oldest server that Handoff runs on: delayed messages, which
// wake-ups are made of, came with it.
const VersionMin = "2.12.0"

// Diagnosis is what a connection to a server tells of it, for a caller that judges how
// an engine is. Nothing in it is judged; a question that was not answered is in
// Unanswered, by its name, and what it asks for is zero.
type Diagnosis struct {
	Server     ServerFacts
	Account    AccountFacts
	Streams    []StreamFacts   // in the order they are made in; missing ones too
	Consumers  []ConsumerFacts // of supervisors and of lanes
	Unanswered map[string]error
}

// ServerFacts are about the server behind the connection, and the way to it.
type ServerFacts struct {
	Name, Version, Cluster string

	RTT time.Duration
	// Ahead is how much the engine's clock is ahead of ours, good to Within.
	// Within is zero where it could not be told.
	Ahead, Within time.Duration
	// Disk is why the disk of a node of ours refuses writes; else empty.
	Disk string
}

// AccountFacts are about the account that we use; a maximum below 1 is none.
type AccountFacts struct {
	Storage, StorageMax int64
}

// StreamFacts are how a stream stands and how it should.
type StreamFacts struct {
	StreamStatus
	Memory     bool     // it is not on the disk
	BytesMax   int64    // below 1 is none, and likewise
	MessageMax int64    // of all messages
	Drops      bool     // full, it drops its oldest messages; else it refuses new ones
	Sealed     bool     // it takes no more
	Synced     bool     // every write of the ledger is, by the word of the operator
	Weaker     []string // settings that are weaker than Handoff makes them, in words
	Behind     []string // replicas that do not keep up, or are gone
	Leaderless bool     // in a cluster: no client can write
}

// ConsumerFacts are how a consumer was seen twice, a moment apart.
type ConsumerFacts struct {
	Stream, Name  string
	Agent         string            // of a lane
	Lane          protocol.Priority // likewise
	Missing       bool              // one that all supervisors share, and that is not there
	Pending       uint64            // never delivered
	AckPending    int               // delivered, and not ended
	AckPendingMax int
	Waiting       int      // pulls that wait; the more of the two times
	Moved         bool     // something was delivered or ended between the two times
	Paused        bool     // it delivers nothing
	Odd           []string // settings that are not as Handoff makes them, in words
}

const (
	// diagnosePatience is how long each question may go unanswered.
	diagnosePatience = 5 * time.Second
	// betweenSights is the time between the two readings of consumers. A pull
	// that found something waiting is answered within milliseconds.
	betweenSights = 700 * time.Millisecond
)

// Diagnose asks a server for everything that says how the engine is, without the
// questions named (streams, clock, consumers). Consumers are looked at twice, 0.7 s
// apart. Only ctx ending is an error.
func Diagnose(ctx context.Context, nc *nats.Conn, without ...string) (Diagnosis, error) {
	d := Diagnosis{Unanswered: map[string]error{}}
	js, err := jetstream.New(nc)
	if err != nil {
		return d, err
	}
	x := &examination{nc: nc, js: js, d: &d}
	x.ask(ctx, "server", x.server)
	x.ask(ctx, "account", x.account)
	if d.Unanswered["account"] != nil { // no JetStream, or not for us: all else would only wait
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
	for range 2 { // the quickest counts: a busy machine is no long way
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

// clock compares the engine's clock with ours: the answer was written some time
// between the question and its arrival. Of a few the quickest counts.
func (x *examination) clock(ctx context.Context) error {
	const tries = 5
	for range tries {
		r, err := askClock(ctx, x.nc)
		if err != nil {
			return err
		}
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

// topologyOf is what the ledger's metadata says of how the streams were made; of
// a ledger that is not there, the default.
func topologyOf(ctx context.Context, js jetstream.JetStream) (Topology, error) {
	ledger, err := js.Stream(ctx, LedgerStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return Topology{}, nil
	}
	if err != nil {
		return Topology{}, wrapStream("read", LedgerStream, err)
	}
	cfg := ledger.CachedInfo().Config
	return Topology{Replicas: cfg.Replicas, AsyncWork: cfg.Metadata[metaAsyncWork] == "true", Fsync: cfg.Metadata[metaFsync]}, nil
}

func streamFacts(info *jetstream.StreamInfo, want jetstream.StreamConfig) StreamFacts {
	cfg := info.Config
	f := StreamFacts{
		StreamStatus: statusOf(info),
		Memory:       cfg.Storage == jetstream.MemoryStorage, BytesMax: cfg.MaxBytes, MessageMax: cfg.MaxMsgs,
		Drops: cfg.Discard == jetstream.DiscardOld, Sealed: cfg.Sealed,
	}
	merged, err := strongerConfig(cfg, want)
	if err != nil {
		f.Weaker = []string{err.Error()}
	}
	is, ours := fields(cfg), fields(merged)
	all := maps.Clone(is)
	maps.Copy(all, ours)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if string(is[name]) != string(ours[name]) {
			f.Weaker = append(f.Weaker, settingWords(name, is[name], ours[name]))
		}
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

// settingWords writes one field that is not as it should be.
func settingWords(field string, is, ours json.RawMessage) string {
	return fmt.Sprintf("%s is %s and should be %s", field, settingValue(field, is), settingValue(field, ours))
}

// settingValue is the value of a field for people: the engine counts durations in
// nanoseconds.
func settingValue(field string, value json.RawMessage) string {
	if len(value) == 0 {
		return "not set"
	}
	switch field {
	case "max_age", "duplicate_window", "subject_delete_marker_ttl", "ack_wait", "inactive_threshold", "max_expires":
		if ns, err := strconv.ParseInt(string(value), 10, 64); err == nil {
			return time.Duration(ns).String()
		}
	}
	return string(value)
}
