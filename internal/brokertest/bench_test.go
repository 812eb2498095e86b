package brokertest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// One node in this process, a connection over a socket, bodies of 1 KiB.
// Run with -cpu to see more clients at once.

var body = make([]byte, 1<<10)

func benchEngine(b *testing.B, fsync embedded.Fsync) broker.Engine {
	n := startNode(b, embedded.Config{Fsync: fsync})
	ensure(b, n.ClientURL(), jetstream.Topology{AsyncWork: fsync == embedded.FsyncAlways})
	return dial(b, n.ClientURL())
}

func eachFsync(b *testing.B, run func(b *testing.B, e broker.Engine)) {
	for _, fsync := range []embedded.Fsync{embedded.FsyncAlways, embedded.FsyncInterval} {
		b.Run("fsync="+string(fsync), func(b *testing.B) {
			e := benchEngine(b, fsync)
			b.ReportAllocs()
			b.ResetTimer()
			run(b, e)
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				ticket := protocol.NewTicket()
				if _, err := e.Append(context.Background(), ticket, 0, ticket, "", body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkLast(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		ticket := protocol.NewTicket()
		if _, err := e.Append(context.Background(), ticket, 0, ticket, "", body); err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := e.Last(context.Background(), ticket, 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkPutOffer(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		var seq atomic.Uint64
		ticket := protocol.NewTicket()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				key := broker.OfferKey{Agent: "bench", Lane: protocol.Normal, Ticket: ticket, Sequence: seq.Add(1)}
				if err := e.PutOffer(context.Background(), key, body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkPullRemove pulls a backlog, 16 offers at a time.
func BenchmarkPullRemove(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		ctx, ticket := context.Background(), protocol.NewTicket()
		if err := e.EnsureQueue(ctx, "bench"); err != nil {
			b.Fatal(err)
		}
		for i := range b.N {
			key := broker.OfferKey{Agent: "bench", Lane: protocol.Normal, Ticket: ticket, Sequence: uint64(i)}
			if err := e.PutOffer(ctx, key, body); err != nil {
				b.Fatal(err)
			}
		}
		b.ResetTimer()
		for n := 0; n < b.N; {
			got, err := e.Pull(ctx, "bench", 16, time.Second)
			if err != nil || len(got) == 0 {
				b.Fatalf("%d offers, %v", len(got), err)
			}
			for _, d := range got {
				if err := d.Remove(); err != nil {
					b.Fatal(err)
				}
			}
			n += len(got)
		}
	})
}

// BenchmarkOfferToWaitingPull measures the time from an offer to a waiting worker.
func BenchmarkOfferToWaitingPull(b *testing.B) {
	eachFsync(b, func(b *testing.B, e broker.Engine) {
		ctx, cancel := context.WithCancel(context.Background())
		if err := e.EnsureQueue(ctx, "bench"); err != nil {
			b.Fatal(err)
		}
		came, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				got, _ := e.Pull(ctx, "bench", 4, time.Hour)
				for _, d := range got {
					came <- struct{}{}
					_ = d.Remove()
				}
			}
		}()
		ticket := protocol.NewTicket()
		b.ResetTimer()
		for i := range b.N {
			key := broker.OfferKey{Agent: "bench", Lane: protocol.Normal, Ticket: ticket, Sequence: uint64(i)}
			if err := e.PutOffer(ctx, key, body); err != nil {
				b.Fatal(err)
			}
			<-came
		}
		b.StopTimer()
		cancel()
		<-ended
	})
}

// BenchmarkAsk measures the round trip of a question.
func BenchmarkAsk(b *testing.B) {
	for name, size := range map[string]int{"1KiB": 1 << 10, "64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			e := benchEngine(b, embedded.FsyncInterval)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			answer := make([]byte, size)
			go func() {
				ended <- e.Serve(ctx, map[string]broker.Answerer{"bench": func(context.Context, []byte) ([]byte, error) { return answer, nil }})
			}()
			defer func() { cancel(); <-ended }()
			ask := func() error {
				_, err := e.Ask(ctx, "bench", body)
				return err
			}
			if err := ask(); err != nil { // until it serves
				b.Fatal(err)
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := ask(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
