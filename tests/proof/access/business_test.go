//go:build proof

package access

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestBusiness checks that each role can do all its work with its commands, without a denial, also on a
// ledger of several partitions.
func TestBusiness(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) { doBusiness(t, partitions) })
	}
}

func doBusiness(t *testing.T, partitions int) {
	h := startServers(t, 1, partitions)
	h.must("operator", "agents", "put", "builder")
	h.must("operator", "agents", "put", "poller")
	h.start("supervisor", "supervise")
	h.start("index", "index", "--file", h.dir+"/index.db")
	h.pollOnce("builder")
	agent := h.program("agent", `package=$(cat)
[ "$HANDOFF_ATTEMPT" = 1 ] && exit 1
case $package in *large*) head -c 600000 /dev/zero | tr '\0' x; exit;; esac
echo '{"body":"done","command":{"goto":"poller"}}'`)
	h.start("builder", "work", "--env", "all", "--agent", "builder", "--", agent)
	ticket := h.must("trusted-submitter", "submit", "--to", "builder", "--reason", "ready", "--task", "build it")
	h.must("trusted-submitter", "wait", ticket, "--timeout", "1m")
	h.largeHandoff()

	for _, role := range []string{"reader", "trusted-submitter", "operator"} {
		if got := h.must(role, "result", ticket); !strings.Contains(got, "done") {
			t.Errorf("%s reads the result %q", role, got)
		}
		for _, verb := range []string{"status", "history", "show"} {
			h.must(role, verb, ticket)
		}
	}
	for _, question := range [][]string{{"list"}, {"list", "--agent", "builder"}, {"tree", ticket}} {
		if got := h.must("reader", question...); !strings.Contains(got, ticket[:8]) {
			t.Errorf("reader asks %v: %q", question, got)
		}
	}
	for _, verb := range [][]string{{"why", ticket}, {"agents", "ls"}, {"inbox"}, {"dead", "list"}} {
		h.must("operator", verb...)
	}
	if got := h.run("operator", "doctor"); strings.Contains(got.out, "not allowed") { // it may find other problems: poller has no worker
		t.Errorf("doctor:\n%s", got.out)
	}
	h.must("operator", "audit", "verify")
	cancelled := h.must("trusted-submitter", "submit", "--to", "poller", "--reason", "ready", "--task", "not needed")
	h.must("trusted-submitter", "cancel", cancelled)
	h.signal()

	if found := h.denials(); len(found) > 0 {
		t.Errorf("roles were denied what they use:\n%s", strings.Join(found, "\n"))
	}
	// A reader may not read about agents: its figures are without breakers and schedules, and say so.
	if got := h.run("reader", "stats"); got.code != 0 || !strings.Contains(got.out, "handoffs") || !strings.Contains(got.errout, "breakers and schedules are left out") {
		t.Errorf("reader asks for stats: %+v", got)
	}
}

// signal has a rule begin a handoff for a signal of each role that may send one.
func (h *server) signal() {
	h.t.Helper()
	template := h.write("template.json", []byte(`{"target":{"agent":"poller"},"reason":"r","task":{"description":{"$":""}}}`))
	h.must("operator", "signal", "on", "order", "-f", template)
	payload := h.write("payload.json", []byte(`"check it"`))
	h.must("trusted-submitter", "signal", "send", "order", "--id", "1", "-f", payload)
	nc := h.dial("gateway")
	if err := nc.Publish("handoff.signal.order", []byte(`"check it, too"`)); err != nil {
		h.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(h.must("operator", "signal", "show", "order"), "2 fired"); {
		if time.Now().After(end) {
			h.t.Fatalf("no handoffs: %s", h.must("operator", "signal", "list"))
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.must("operator", "signal", "rm", "order")
}

// pollOnce has an agent without a process of its own do its work by commands.
func (h *server) pollOnce(agent string) {
	h.t.Helper()
	claim := func() (lease string) {
		h.t.Helper()
		h.must("trusted-submitter", "submit", "--to", agent, "--reason", "ready", "--task", "by hand")
		lease = field[string](h.t, h.must(agent, "claim", "--agent", agent, "--wait", "30s", "-o", "json"), "lease")
		h.must(agent, "ack", lease, "accepted")
		return lease
	}
	lease := claim()
	h.must(agent, "heartbeat", lease)
	h.must(agent, "progress", lease, "--percent", "50")
	h.must(agent, "complete", lease, "--body", `"done"`)
	h.must(agent, "release", claim())
	lease = field[string](h.t, h.must(agent, "claim", "--agent", agent, "--wait", "30s", "-o", "json"), "lease")
	h.must(agent, "ack", lease, "rejected", "--reason", "not for me")
}

// largeHandoff submits a package that travels by digest, and a result.
func (h *server) largeHandoff() {
	h.t.Helper()
	ticket := h.must("operator", "submit", "-f", h.largePackage("builder"))
	h.must("trusted-submitter", "wait", ticket, "--timeout", "1m")
	for _, role := range []string{"reader", "trusted-submitter", "operator"} {
		h.must(role, "show", ticket)
		if got := h.must(role, "result", ticket); len(got) != 600_000 {
			h.t.Errorf("%s reads a result of %d bytes", role, len(got))
		}
	}
}

// largePackage is the path of one.
func (h *server) largePackage(to string) string { return h.largePackageFrom("source", to) }

func (h *server) largePackageFrom(source, to string) string {
	h.t.Helper()
	body, err := json.Marshal(protocol.Package{Source: source, Target: protocol.Target{Agent: to}, Reason: "ready",
		Task: protocol.Task{Description: strings.Repeat("large ", 100_000)}})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.write("large.json", body)
}
