//go:build proof

package access

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestOneAccountForAllAgents shows why accounts.conf has an account for each agent that
// is not trusted: in one for all of them, an agent can have the answer to its own
// question delivered to another as if it was the answer to that one's, whatever its
// permissions say. That it cannot have it delivered to the gateway, as a question in the
// other's name, is as it should be, and seen here should the server change its mind.
func TestOneAccountForAllAgents(t *testing.T) {
	if testworld.Race {
		t.Skip("the server has no race detector in it: run it without -race")
	}
	user := func(agent string) string {
		return fmt.Sprintf(`{ user: %s, password: secret, permissions: { publish: "handoff.v1.%s.>", subscribe: "_INBOX_%s.>" } }`, agent, agent, agent)
	}
	imported := func(subject string) string {
		return `{ service: { account: HANDOFF, subject: "` + subject + `" } }`
	}
	one, each := `{ service: "handoff.v1.*.>" }`, `{ service: "handoff.v1.x.>" }, { service: "handoff.v1.y.>" }`
	for _, c := range []struct {
		name, exports, accounts string
		forged                  bool // the answer that y gets
	}{
		{"one account", one, `AGENTS: { users: [ ` + user("x") + `, ` + user("y") + ` ], imports: [ ` + imported("handoff.v1.*.>") + ` ] }`, true},
		{"one account, an export for each", each, `AGENTS: { users: [ ` + user("x") + `, ` + user("y") + ` ], imports: [ ` + imported("handoff.v1.x.>") + `, ` + imported("handoff.v1.y.>") + ` ] }`, true},
		{"an account for each", one, `X: { users: [ ` + user("x") + ` ], imports: [ ` + imported("handoff.v1.x.>") + ` ] }, Y: { users: [ ` + user("y") + ` ], imports: [ ` + imported("handoff.v1.y.>") + ` ] }`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := testworld.StartServer(t, t.TempDir(), `accounts { HANDOFF: { users: [ { user: gateway, password: secret } ], exports: [ `+c.exports+` ] }, `+c.accounts+` }`)
			connect := func(name, listens string) (*nats.Conn, *nats.Subscription) {
				nc, err := nats.Connect(node.URL, nats.UserInfo(name, "secret"), nats.CustomInboxPrefix("_INBOX_"+name))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				sub, err := nc.SubscribeSync(listens)
				if err == nil {
					err = nc.Flush()
				}
				if err != nil {
					t.Fatal(err)
				}
				return nc, sub
			}
			gateway, asked := connect("gateway", "handoff.v1.*.>")
			x, _ := connect("x", "_INBOX_x.>")
			y, heard := connect("y", "_INBOX_y.>")
			for _, reply := range []string{"_INBOX_y.answer", "handoff.v1.y.complete"} {
				if err := x.PublishRequest("handoff.v1.x.result", reply, []byte("mine")); err != nil {
					t.Fatal(err)
				}
				question, err := asked.NextMsg(testTimeout)
				if err != nil || question.Subject != "handoff.v1.x.result" {
					t.Fatalf("%v %v", question, err)
				}
				if err := question.Respond([]byte("words that x had a part in")); err != nil {
					t.Fatal(err)
				}
				if err := gateway.Flush(); err != nil { // by then it was delivered, wherever that is
					t.Fatal(err)
				}
			}
			if err := y.Flush(); err != nil {
				t.Fatal(err)
			}
			if n, _, _ := heard.Pending(); (n > 0) != c.forged {
				t.Errorf("y got %d answers that x had asked for", n)
			}
			if n, _, _ := asked.Pending(); n > 0 {
				t.Errorf("the gateway got %d questions in y's name", n)
			}
		})
	}
}
