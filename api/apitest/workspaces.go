package apitest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testWorkspaces: a workspace is opened once, has its limits changed, and is closed for good. A
// variable is settled under its version.
func testWorkspaces(t *testing.T, w *world) {
	admin, name, five := w.All(t, api.Local("ann")), "w-"+protocol.NewTicket()[:8], 5
	_, err := admin.Workspace(w.ctx, name)
	w.wantCode("a workspace that is not there", err, protocol.CodeNotFound)
	_, err = admin.OpenWorkspace(w.ctx, name, protocol.WorkspaceLimits{MaxHandoffs: new(protocol.HandoffsMax + 1)})
	w.wantCode("a limit out of range", err, protocol.CodeInvalid)
	for range 2 {
		opened, err := admin.OpenWorkspace(w.ctx, name, protocol.WorkspaceLimits{MaxHandoffs: &five})
		if w.must(err); opened.Name != name || *opened.Limits.MaxHandoffs != five {
			t.Errorf("opened: %+v", opened)
		}
	}
	set := func(value string, version int) error {
		_, err := admin.ResolveVariables(w.ctx, name, api.SetVariables{Values: map[string]json.RawMessage{"plan": json.RawMessage(value)}, IfVersion: &version})
		return err
	}
	w.must(set(`"a"`, 0))
	err = set(`"b"`, 0)
	w.wantCode("a variable that has changed", err, protocol.CodeConflict)
	if !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("%v does not name the value that stands", err)
	}
	w.must(set(`{"token":"ghp_0123456789abcdefghijABCDEFGHIJ012345"}`, 1))
	read, err := admin.Workspace(w.ctx, name)
	if w.must(err); read.Variables["plan"].Version != 2 || strings.Contains(string(read.Variables["plan"].Value), "ghp_") {
		t.Errorf("%s is not redacted, or not of version 2", read.Variables["plan"].Value)
	}
	all, err := admin.Workspaces(w.ctx)
	if w.must(err); len(all) != 1 || all[0].Name != name {
		t.Errorf("all: %+v", all)
	}
	closed, err := admin.CloseWorkspace(w.ctx, name)
	if w.must(err); closed.ClosedAt.IsZero() {
		t.Errorf("closed: %+v", closed)
	}
	_, err = admin.OpenWorkspace(w.ctx, name, protocol.WorkspaceLimits{})
	w.wantCode("a workspace that was closed", err, protocol.CodeClosed)
	_, err = w.All(t, api.Agent("coder")).Workspace(w.ctx, name)
	if !errors.Is(err, &protocol.Error{Code: protocol.CodeForbidden}) {
		t.Errorf("an agent reads any workspace: %v", err)
	}
}
