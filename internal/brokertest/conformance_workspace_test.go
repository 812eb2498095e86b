package brokertest

import (
	"errors"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var workspaceCases = []conformanceCase{
	{"a workspace is appended to by one of two who read it", workspaceCAS},
	{"an append of a workspace that is sent twice is stored once", workspaceAgain},
	{"workspaces are listed", workspaceList},
}

func workspaceCAS(k *kit) {
	id := protocol.NewTicket()
	_, err := k.WorkspaceHead(k.ctx, id)
	k.wantErr(err, broker.ErrNotFound)
	first, err := k.AppendWorkspace(k.ctx, id, 0, protocol.NewTicket(), []byte("1"))
	k.must(err)
	_, err = k.AppendWorkspace(k.ctx, id, 0, protocol.NewTicket(), []byte("2"))
	k.wantErr(err, broker.ErrConflict)
	second, err := k.AppendWorkspace(k.ctx, id, first, protocol.NewTicket(), []byte("2"))
	k.must(err)
	_, err = k.AppendWorkspace(k.ctx, id, first, protocol.NewTicket(), []byte("3"))
	k.wantErr(err, broker.ErrConflict)
	head, err := k.WorkspaceHead(k.ctx, id)
	k.must(err)
	if head.Seq != second || second <= first || string(head.Body) != "2" || head.At.IsZero() {
		k.Errorf("head %+v after %d and %d", head, first, second)
	}
}

func workspaceAgain(k *kit) {
	id, record := protocol.NewTicket(), protocol.NewTicket()
	first, err := k.AppendWorkspace(k.ctx, id, 0, record, []byte("1"))
	k.must(err)
	_, err = k.AppendWorkspace(k.ctx, id, first, protocol.NewTicket(), []byte("2"))
	k.must(err)
	again, err := k.AppendWorkspace(k.ctx, id, 0, record, []byte("1"))
	if err != nil || again != first {
		k.Errorf("%d, %v, want %d", again, err, first)
	}
}

func workspaceList(k *kit) {
	id := protocol.NewTicket()
	_, err := k.AppendWorkspace(k.ctx, id, 0, protocol.NewTicket(), []byte("1"))
	k.must(err)
	var ids []string
	k.must(k.EachWorkspace(k.ctx, func(id string) error { ids = append(ids, id); return nil }))
	if !slices.Contains(ids, id) || !slices.IsSorted(ids) {
		k.Errorf("%s is not in %v", id, ids)
	}
	stop := errors.New("stop")
	k.wantErr(k.EachWorkspace(k.ctx, func(string) error { return stop }), stop)
}
