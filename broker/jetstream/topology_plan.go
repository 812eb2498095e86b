package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// StreamPlan is what EnsureTopology does with one stream.
type StreamPlan struct {
	Stream   string   `json:"stream"`
	Missing  bool     `json:"missing,omitempty"` // it is made
	Replicas int      `json:"replicas"`          // once it is as it should be
	Stronger []string `json:"stronger,omitempty"`
	// Weaker is what was asked for that is less than what stands. It stays as it is.
	Weaker []string `json:"weaker,omitempty"`
}

// PlanTopology tells what EnsureTopology would do, and does nothing. Replicas 0 is
// as many as each stream has, and 1 for those that are missing. It is an error where
// a stream of one of our names is not ours to change.
func PlanTopology(ctx context.Context, nc *nats.Conn, t Topology) ([]StreamPlan, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	var all []StreamPlan
	for _, want := range t.streams(time.Now()) {
		plan := StreamPlan{Stream: want.Name, Replicas: want.Replicas}
		err := retryWhileTemporary(ctx, js, func(ctx context.Context) error {
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
				plan.Weaker = append(plan.Weaker, fmt.Sprintf("replicas %d, of which %d are asked for", have.Replicas, t.Replicas))
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

// ReadTopology is what stands, by the ledger's own record; of a server without one,
// the zero Topology. It asks again while no server answers, as long as ctx lasts:
// a cluster that has just elected its first leader lets a question go by.
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

// standsPatience is how long one question how the streams stand waits for its answer,
// which takes milliseconds.
const standsPatience = 3 * time.Second

// strongerWords says in words what strengthen has changed.
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
		{"markers of what expired kept for", have.SubjectDeleteMarkerTTL, merged.SubjectDeleteMarkerTTL},
		{"synced", cmp.Or(have.Metadata[metaFsync], "unknown"), cmp.Or(merged.Metadata[metaFsync], "unknown")},
	} {
		if d.from != d.to {
			words = append(words, fmt.Sprintf("%s: %v -> %v", d.what, d.from, d.to))
		}
	}
	if len(words) == 0 && !reflect.DeepEqual(have, merged) {
		words = append(words, "what it says of itself")
	}
	return words
}
