package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// WorkspaceHead implements broker.Engine.
func (j *Engine) WorkspaceHead(ctx context.Context, id string) (broker.WorkspaceEntry, error) {
	if err := protocol.CheckID("workspace", id); err != nil {
		return broker.WorkspaceEntry{}, err
	}
	msg, err := j.getMessage(ctx, WorkspaceStream, getRequest{LastFor: workspacePrefix + id})
	if err != nil {
		return broker.WorkspaceEntry{}, fmt.Errorf("workspace %s: %w", id, unsupported(err))
	}
	return broker.WorkspaceEntry{Seq: msg.Seq, At: msg.Time.UTC(), Body: msg.Data}, nil
}

// unsupported returns the error of an engine without the stream.
func unsupported(err error) error {
	if hasCode(err, codeNoStream) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return broker.ErrNoWorkspaces
	}
	return err
}

// AppendWorkspace implements broker.Engine. It does not look for a missing stream: the read of the
// head, which comes first, does.
func (j *Engine) AppendWorkspace(ctx context.Context, id string, after uint64, record string, body []byte) (seq uint64, err error) {
	if err := protocol.CheckID("workspace", id); err != nil {
		return 0, err
	}
	msg := nats.NewMsg(workspacePrefix + id)
	msg.Data = body
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(after, 10)}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{WorkspaceStream}
	msg.Header[recordHeader] = []string{record}
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		seq, err = j.publish(ctx, msg)
		if hasCode(err, codeConflict) {
			seq, err = j.workspaceSuccessor(ctx, id, after, record)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("append to workspace %s after %d: %w", id, after, unsupported(err))
	}
	return seq, nil
}

// workspaceSuccessor returns the successor of sequence after if it is this record, because an
// append that timed out may have been stored; otherwise ErrConflict.
func (j *Engine) workspaceSuccessor(ctx context.Context, id string, after uint64, record string) (uint64, error) {
	next, err := j.getMessage(ctx, WorkspaceStream, getRequest{Seq: after + 1, NextFor: workspacePrefix + id})
	switch {
	case err != nil && !errors.Is(err, broker.ErrNotFound):
		return 0, err
	case err == nil && next.header(recordHeader) == record:
		return next.Seq, nil
	}
	return 0, broker.ErrConflict
}

// EachWorkspace implements broker.Engine.
func (j *Engine) EachWorkspace(ctx context.Context, fn func(id string) error) error {
	var subjects map[string]uint64
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		stream, err := j.js.Stream(ctx, WorkspaceStream)
		if err != nil {
			return err
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(workspacePrefix+"*"))
		if err == nil {
			subjects = info.State.Subjects
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list workspaces: %w", unsupported(err))
	}
	for _, subject := range slices.Sorted(maps.Keys(subjects)) {
		if id, ok := lastToken(subject, workspacePrefix); ok && protocol.CheckID("workspace", id) == nil {
			if err := fn(id); err != nil {
				return err
			}
		}
	}
	return nil
}
