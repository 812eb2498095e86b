package jetstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// consumers reads all consumers twice: one that does not move while it is pulled
// from is stuck, and a supervisor that is there pulls or has just been given
// something.
func (x *examination) consumers(ctx context.Context) error {
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
	// The one on the ledger is there only where a supervisor has had a Watch.
	if _, there := second[consumerKey{TimerStream, SupervisorConsumer}]; !there {
		x.d.Consumers = append(x.d.Consumers, ConsumerFacts{Stream: TimerStream, Name: SupervisorConsumer, Missing: true})
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
	for _, name := range []string{LedgerStream, WorkStream, TimerStream} {
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
			if name == WorkStream && lane || name != WorkStream && info.Name == SupervisorConsumer {
				all[consumerKey{name, info.Name}] = info
			}
		}
		if err := list.Err(); err != nil {
			return nil, fmt.Errorf("consumers of %s: %w", name, err)
		}
	}
	return all, nil
}

// consumerFacts puts two sights together; the first may be missing.
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
	switch agent, lane, ok := parseLaneConsumer(key.name); {
	case key.stream == WorkStream && ok:
		f.Agent, f.Lane = agent, lane
		ours = laneConfig(agent, lane, is.Config.AckWait)
	case key.stream == LedgerStream:
		ours = followConfig(ledgerFollower, is.Config.AckWait)
	default:
		ours = followConfig(dueFollower, is.Config.AckWait)
	}
	ours.Replicas = is.Config.Replicas                                            // the stream's, where they are not set
	ours.MaxWaiting, ours.PauseUntil = is.Config.MaxWaiting, is.Config.PauseUntil // looked at apart
	for _, d := range differences(is.Config, ours) {
		f.Odd = append(f.Odd, settingWords(d.field, []byte(d.is), []byte(d.ours)))
	}
	return f
}
