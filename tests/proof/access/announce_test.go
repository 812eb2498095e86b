//go:build proof

package access

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestAnnouncementsArrive has each role that appends make one that a supervisor must see to. No
// supervisor runs, so that the announcement stays where it arrived.
func TestAnnouncementsArrive(t *testing.T) {
	h := startServer(t)
	for _, agent := range []string{"builder", "reviewer"} {
		h.must("operator", "agents", "put", agent)
	}
	h.awaitOutput(h.start("gateway", "gateway"), "ready")
	submit := func(agent string) string {
		return h.must("trusted-submitter", "submit", "--to", agent, "--reason", "ready", "--task", "a try")
	}
	fail := func(role string, more ...string) {
		claim := append([]string{"claim", "--agent", role, "--wait", "30s", "--accept", "-o", "json"}, more...)
		h.must(role, "fail", field[string](t, h.must(role, claim...), "lease"), "--reason", "no luck")
	}

	cancelled := submit("builder")
	h.must("trusted-submitter", "cancel", cancelled)
	h.requireAnnounced("trusted-submitter", cancelled)

	failed := submit("builder")
	fail("builder")
	h.requireAnnounced("builder", failed)

	outside := submit("reviewer")
	fail("reviewer", "--gateway")
	h.requireAnnounced("gateway", outside)

	if found := h.denials(); len(found) > 0 {
		t.Errorf("denied: %v", found)
	}
}

// announcements are what is tried on the subjects on which writers announce their appends.
func announcements() []attack {
	send := func(key, value string) func(a *attacker) {
		return func(a *attacker) { a.ask("handoff.due."+a.w.waiting+".1", ``, key, value) }
	}
	return []attack{
		{"announce an append", send("Handoff-Attention", "now")},
		{"roll the timers up by an announcement", send("Nats-Rollup", "all")},
	}
}

// requireAnnounced checks that an append of the ticket has been announced.
func (h *server) requireAnnounced(role, ticket string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testTimeout)
	defer cancel()
	js, err := jetstream.New(h.dial("operator"))
	if err != nil {
		h.t.Fatal(err)
	}
	timers, err := js.Stream(ctx, "HANDOFF_TIMERS")
	if err != nil {
		h.t.Fatal(err)
	}
	info, err := timers.Info(ctx, jetstream.WithSubjectFilter("handoff.due."+ticket+".*"))
	if err != nil {
		h.t.Fatal(err)
	}
	if len(info.State.Subjects) == 0 {
		h.t.Errorf("the append of the %s is not announced", role)
	}
}
