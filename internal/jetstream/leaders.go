package jetstream

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// LeaderMove is a stream of a divided ledger that another server leads, or is to lead.
type LeaderMove struct {
	Stream   string
	From, To string // servers
}

// SpreadLeaders spreads the leaders of a divided ledger over its servers: each leads as many ledger, work
// and timer streams as any other, give or take one, and no server leads two streams of a partition while
// another leads none. A dry run only returns the moves. Only servers that have all of a stream are chosen.
//
// A move takes the time of an election without a dead leader, well below a second. Requests of that
// moment are retried by the engine. SpreadLeaders returns the moves made when ctx ends.
func SpreadLeaders(ctx context.Context, nc *nats.Conn, dryRun bool) (moves []LeaderMove, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	t, err := ReadTopology(ctx, nc)
	if err != nil || t.Partitions < 2 {
		return nil, err
	}
	for p := range t.Partitions {
		for kind, name := range []string{ledgerStreams[p], workStreams[p], timerStreams[p]} {
			move, err := wantedLeader(ctx, js, name, p+kind)
			if err == nil && move.From != move.To && !dryRun {
				err = moveLeader(ctx, js, move)
			}
			if err != nil {
				return moves, wrapStream("spread the leaders of", name, err)
			}
			if move.From != move.To {
				moves = append(moves, move)
			}
		}
	}
	return moves, nil
}

// wantedLeader returns the leader of a stream, and the server at a turn among its servers; the leader
// again if that server is not up to date.
func wantedLeader(ctx context.Context, js jetstream.JetStream, name string, turn int) (LeaderMove, error) {
	move := LeaderMove{Stream: name}
	err := retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return err
		}
		cluster := stream.CachedInfo().Cluster
		if cluster == nil || cluster.Leader == "" {
			return nil
		}
		servers := []string{cluster.Leader}
		for _, r := range cluster.Replicas {
			servers = append(servers, r.Name)
		}
		slices.Sort(servers)
		move.From, move.To = cluster.Leader, servers[turn%len(servers)]
		for _, r := range cluster.Replicas {
			if r.Name == move.To && (r.Offline || !r.Current) {
				move.To = move.From
			}
		}
		return nil
	})
	return move, err
}

// leaderPause is the time between two looks at a stream that changes its leader.
const leaderPause = 200 * time.Millisecond

// moveLeader asks a stream's leader to step down for another server until that one leads, or is no longer
// up to date.
func moveLeader(ctx context.Context, js jetstream.JetStream, move LeaderMove) error {
	request, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": move.To}})
	if err != nil {
		return err
	}
	for {
		err := retryWhileTemporary(ctx, js, broker.TimeoutDefault, func(ctx context.Context) error {
			return requestAPI(ctx, js.Conn(), "STREAM.LEADER.STEPDOWN."+move.Stream, request, &apiAnswer{})
		})
		for range 10 {
			stream, lookErr := js.Stream(ctx, move.Stream)
			if lookErr == nil && stream.CachedInfo().Cluster != nil && stream.CachedInfo().Cluster.Leader == move.To {
				return nil
			}
			select {
			case <-ctx.Done():
				return causeOr(ctx, err)
			case <-time.After(leaderPause):
			}
		}
		if err != nil {
			return err
		}
	}
}
