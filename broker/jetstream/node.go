package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// NodeSubject is where a single node of handoff dev answers how it is. A server that is
// not run by Handoff does not answer there.
const NodeSubject = "handoff.node"

// NodeHealth is what a node answers.
type NodeHealth struct {
	Problem string `json:"problem,omitempty"` // why its disk refuses writes
}

// nodePatience is how long a node may take to answer: it does nothing for it.
const nodePatience = 250 * time.Millisecond

// AskNode returns why the disk of the node behind a connection refuses writes. It is
// empty where the node is well, does not answer, or is a server that Handoff does not run.
func AskNode(ctx context.Context, nc *nats.Conn) string {
	if nc.ConnectedClusterName() != "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, NodeSubject, nil)
	if err != nil {
		return ""
	}
	var health NodeHealth
	if err := json.Unmarshal(reply.Data, &health); err != nil {
		return ""
	}
	return health.Problem
}

// diskError says that the engine's disk refuses writes. Trying again may help.
type diskError struct{ problem string }

func (e *diskError) Error() string { return "the engine cannot write: " + e.problem }
func (e *diskError) Unwrap() error { return broker.ErrUnreachable }

// explainSilence is why a write got no answer: a server whose disk refuses writes gives
// none, and its node knows.
func (j *Engine) explainSilence(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	if problem := AskNode(j.closing, j.nc); problem != "" {
		return &diskError{problem}
	}
	return err
}
