//go:build proof

package access

import (
	"strings"
	"testing"
)

// TestPermissionErrors checks that the error of a missing permission names it, and does not say that
// no server answers.
func TestPermissionErrors(t *testing.T) {
	h := startServer(t)
	h.must("operator", "agents", "put", "builder")
	h.must("operator", "agents", "put", "tester")
	ticket := h.must("operator", "submit", "--to", "builder", "--reason", "r", "--task", "t")
	public := func(role string) string { return h.env[variable(role)] }
	for _, c := range []struct {
		name, role string
		args       []string
		code       int
		says       string
	}{
		{"a reader submits", "reader", []string{"submit", "--to", "builder", "--reason", "r", "--task", "t"}, exitError, "not allowed: user " + public("reader") + " may not publish to handoff.ledger."},
		{"a reader cancels", "reader", []string{"cancel", ticket}, exitError, "may not publish to handoff.ledger." + ticket},
		{"a reader lists all agents", "reader", []string{"agents", "ls"}, exitError, "may not publish to $KV.HANDOFF_HOLDERS.probe"},
		{"a submitter follows the ledger", "trusted-submitter", []string{"tail", "--since", "1m"}, exitError, "may not publish to $JS.API.CONSUMER.CREATE.HANDOFF_LEDGER."},
		{"a submitter lists", "trusted-submitter", []string{"list"}, exitError, "may not publish to handoff.query.list"},
		{"a submitter puts a large package", "trusted-submitter", []string{"submit", "-f", h.largePackage("builder")}, exitError, "may not publish to $O.HANDOFF_BLOBS."},
		{"a worker serves another agent", "builder", []string{"claim", "--agent", "tester"}, exitError, "may not publish to $JS.API.CONSUMER.CREATE.HANDOFF_WORK.tester-"},
		{"a supervisor makes the streams", "supervisor", []string{"topology", "ensure", "--replicas", "1", "--fsync", "always"}, exitError, "may not publish to $JS.API.STREAM.UPDATE.HANDOFF_LEDGER"},
		{"an untrusted worker asks the engine", "reviewer", []string{"status", ticket}, exitError, "may not publish to $JS.API.STREAM.INFO.HANDOFF_LEDGER"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := h.run(c.role, c.args...)
			if got.code != c.code || !strings.Contains(got.errout, c.says) {
				t.Errorf("ended with %d and said: %s", got.code, got.errout)
			}
		})
	}
	t.Run("in JSON", func(t *testing.T) {
		got := h.run("reader", "cancel", ticket, "-o", "json")
		if code := field[string](t, got.errout, "code"); code != "not_allowed" {
			t.Errorf("code %s in %s", code, got.errout)
		}
	})
	t.Run("another's inbox", func(t *testing.T) {
		got := h.runAs(append(h.envOf("builder"), "NATS_INBOX_PREFIX="), "status", ticket)
		if got.code != exitError || !strings.Contains(got.errout, "--inbox-prefix") {
			t.Errorf("ended with %d and said: %s", got.code, got.errout)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		got := h.runAs(append(h.envOf("reader"), "NATS_NKEY="), "status", ticket)
		if got.code != exitUnreachable || !strings.Contains(got.errout, "does not let us in") {
			t.Errorf("ended with %d and said: %s", got.code, got.errout)
		}
	})
	if head := h.must("operator", "history", ticket); strings.Contains(head, "cancel_requested") {
		t.Errorf("something came of it:\n%s", head)
	}
}
