package testworld

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Acks are what sources were told: the tickets that were acknowledged, and what
// failed. As a writer it reads what a source says of it, a line each (Ack.String).
type Acks struct {
	mu      sync.Mutex
	partial []byte
	tickets []string
	longest time.Duration
	failed  []string
}

// Ack is the end of one submission: its ticket, or why there is none.
type Ack struct {
	Ticket string
	Took   time.Duration
	Err    error
}

func (a Ack) String() string {
	if a.Err != nil {
		return fmt.Sprintf("failed %v after %v", a.Err, a.Took)
	}
	return fmt.Sprintf("acked %s %d", a.Ticket, a.Took.Milliseconds())
}

// Add keeps one.
func (a *Acks) Add(ack Ack) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read(ack.String())
}

func (a *Acks) Write(text []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.partial = append(a.partial, text...)
	for {
		line, rest, whole := bytes.Cut(a.partial, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		a.partial = rest
		a.read(string(line))
	}
}

func (a *Acks) read(line string) {
	var ticket string
	var ms int64
	if n, _ := fmt.Sscanf(line, "acked %s %d", &ticket, &ms); n == 2 {
		a.tickets = append(a.tickets, ticket)
		a.longest = max(a.longest, time.Duration(ms)*time.Millisecond)
	} else if len(line) > 6 && line[:6] == "failed" {
		a.failed = append(a.failed, line)
	}
}

// Tickets are those acknowledged so far.
func (a *Acks) Tickets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.tickets...)
}

const (
	// SubmitTimeout is how long a submission may take, and end well.
	SubmitTimeout = 30 * time.Second
	// submitInterval is the time between two of one source.
	submitInterval = 250 * time.Millisecond
)

// Submit is a source: it submits packages to an agent until ctx ends, and tells what
// came of each. name is of this test alone.
func Submit(ctx context.Context, b *broker.Broker, name, agent string, report func(Ack)) error {
	tick := time.NewTicker(submitInterval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		in, err := b.Prepare(ctx, protocol.Package{Source: "source", Key: fmt.Sprint(name, " ", n),
			Target: protocol.Target{Agent: agent}, Reason: "chaos", Task: protocol.Task{Description: "run"}})
		if err != nil {
			return err
		}
		// What has begun when it is told to end is ended.
		trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), SubmitTimeout)
		began := time.Now()
		head, err := b.Submit(trying, in)
		cancel()
		report(Ack{head.Ticket, time.Since(began), err})
	}
}
