//go:build proof

package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// holeTimeout is how long what is known to be possible may take to be seen.
const holeTimeout = time.Minute

// agents are those of the roles that have one.
var agents = map[string]string{"builder": "builder", "reviewer": "reviewer"}

// TestAttacks tries every attack with the credentials of every role, and compares the streams before
// and after. Only the attacks in knownHoles may succeed.
func TestAttacks(t *testing.T) {
	attackAs(t, 1, "reviewer", "reader", "trusted-submitter", "builder", "gateway", "index", "supervisor")
}

// TestAttacksOnACluster attacks a cluster of three servers, from another server than that of the
// victims. Roles outside stay outside; builder, a role inside, shows that the test sees a success.
func TestAttacksOnACluster(t *testing.T) {
	attackAs(t, 3, "reviewer", "reader", "trusted-submitter", "builder")
}

func attackAs(t *testing.T, servers int, tried ...string) {
	table := map[string]map[string]string{}
	var order []string
	for _, role := range tried {
		table[role] = map[string]string{}
		t.Run(role, func(t *testing.T) {
			w := newWorld(t, servers)
			a := &attacker{w: w, t: t, role: role, nc: w.dialAt(w.nodes[len(w.nodes)-1], role)}
			before := w.look()
			for _, attack := range slices.Concat(attacks(agents[role]), governanceAttacks(), announcements(), injections(role)) {
				before = a.tryAttack(attack, knownHoles[role][attack.name], before)
				table[role][attack.name] = a.outcome
				if !slices.Contains(order, attack.name) {
					order = append(order, attack.name)
				}
			}
		})
	}
	t.Log("\n" + tableOf(order, tried, table))
}

// tryAttack does one attack and judges it by what is known to be possible: hole says why, or
// nothing. It returns what stands after it.
func (a *attacker) tryAttack(attack attack, hole string, before state) state {
	a.t.Helper()
	a.outcome, a.detail = "", ""
	attack.do(a)
	after := a.w.look()
	bad := func() bool { return a.outcome == read || a.outcome == changed }
	// The engine answers a request of its API in its own time.
	end := time.Now().Add(holeTimeout)
	for hole != "" && !bad() && len(changes(before, after)) == 0 && time.Now().Before(end) {
		after = a.w.look()
	}
	// A cluster shows what a hole changed bit by bit: all of it belongs to this attack.
	for hole != "" && time.Now().Before(end) {
		testworld.Pause(a.t.Context(), 300*time.Millisecond)
		again := a.w.look()
		if len(changes(after, again)) == 0 {
			break
		}
		after = again
	}
	found := changes(before, after)
	if hole == "" && len(found) > 0 {
		after, found = a.w.lasting(before, after)
	}
	if len(found) > 0 {
		a.noteOutcome(changed, strings.Join(found, "; "))
	}
	switch {
	case bad() && hole == "":
		a.t.Errorf("%s can %s: %s: %s", a.role, attack.name, a.outcome, a.detail)
	case !bad() && hole != "":
		a.t.Errorf("%s can no longer %s (%s: %s): take it out of holes and of security.md", a.role, attack.name, a.outcome, a.detail)
	}
	return after
}

func tableOf(order, roles []string, table map[string]map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-48s", "attack")
	for _, role := range roles {
		fmt.Fprintf(&b, " %-10s", role)
	}
	for _, name := range order {
		fmt.Fprintf(&b, "\n%-48s", name)
		for _, role := range roles {
			fmt.Fprintf(&b, " %-10s", table[role][name])
		}
	}
	return b.String()
}
