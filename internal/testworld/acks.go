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

// Acks collects the results of submissions: the acknowledged tickets and the failures. As a writer
// it reads the output of a source process, a line for each result (Ack.String).
type Acks struct {
	mu      sync.Mutex
	partial []byte
	tickets []string
	longest time.Duration
	failed  []string
}

// Ack is the result of one submission: its ticket, or its error.
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

// Add adds a result.
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

// Tickets returns the tickets acknowledged so far.
func (a *Acks) Tickets() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.tickets...)
}

const (
	// SubmitTimeout is how long a submission may take.
	SubmitTimeout = 30 * time.Second
	// submitInterval is the time between two submissions of a source.
	submitInterval = 250 * time.Millisecond
)

// Submit is a source: it submits packages to an agent until ctx ends, and reports the result of
// each. name must be unique in the test.
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
		// A submission that has begun is finished after ctx has ended.
		trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), SubmitTimeout)
		began := time.Now()
		head, err := b.Submit(trying, in)
		cancel()
		report(Ack{head.Ticket, time.Since(began), err})
	}
}
