//go:build proof

package access

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
)

// attack is one thing that an attacker tries.
type attack struct {
	name string
	do   func(a *attacker)
}

// attacks are the attacks that need no other process to answer. me is the agent of the
// attacker, where it has one.
func attacks(me string) []attack {
	var all []attack
	add := func(name string, do func(a *attacker)) { all = append(all, attack{name, do}) }
	api := func(name, verb, body string) {
		add(name, func(a *attacker) { a.ask("$JS.API."+verb, a.fill(body)) })
	}

	// The queue of another agent.
	api("take its offers", "CONSUMER.MSG.NEXT.HANDOFF_WORK.tester-normal", `{"batch":1,"no_wait":true}`)
	api("look at its consumer", "CONSUMER.INFO.HANDOFF_WORK.tester-normal", ``)
	const filter = "handoff.work.tester.normal.>"
	config := func(name, more string) string {
		return `{"stream_name":"HANDOFF_WORK","config":{` + name + `"filter_subject":"` + filter + `","ack_policy":"explicit"` + more + `}}`
	}
	api("a consumer on its queue", "CONSUMER.CREATE.HANDOFF_WORK.evil."+filter, config(`"name":"evil",`, ""))
	api("a consumer on its queue, an older form", "CONSUMER.CREATE.HANDOFF_WORK", config("", ""))
	api("a durable consumer on its queue", "CONSUMER.DURABLE.CREATE.HANDOFF_WORK.evil", config(`"durable_name":"evil",`, ""))
	api("its consumer made to push to me", "CONSUMER.CREATE.HANDOFF_WORK.tester-normal."+filter, config(`"durable_name":"tester-normal",`, `,"deliver_subject":"evil"`))
	if me != "" {
		api("a consumer of mine on its queue", "CONSUMER.CREATE.HANDOFF_WORK."+me+"-normal.handoff.work."+me+".normal.>", config(`"durable_name":"`+me+`-normal",`, ""))
	}
	api("read its offer by sequence", "STREAM.MSG.GET.HANDOFF_WORK", `{"seq":WORK}`)
	api("read its offer directly", "DIRECT.GET.HANDOFF_WORK", `{"seq":WORK}`)
	api("read its last offer directly", "DIRECT.GET.HANDOFF_WORK.handoff.work.tester.normal.x.2", ``)
	api("list its queue", "STREAM.INFO.HANDOFF_WORK", `{"subjects_filter":"handoff.work.tester.>"}`)
	for _, word := range []string{"+ACK", "-NAK", "+TERM", "+WPI", "+NXT"} {
		add("say "+word+" for its delivery", func(a *attacker) { a.tell(a.w.ack, word) })
		add("say "+word+" in the newer form", func(a *attacker) { a.tell(a.w.ackV2, word) })
	}
	if me != "" {
		add("acknowledge its offer by my consumer", func(a *attacker) {
			a.tell(fmt.Sprintf("$JS.ACK.HANDOFF_WORK.%s-normal.1.%d.1.1.0", me, a.w.work), "+ACK")
		})
		add("the same in the newer form", func(a *attacker) {
			a.tell(fmt.Sprintf("$JS.ACK._.HASH.HANDOFF_WORK.%s-normal.1.%d.1.1.0", me, a.w.work), "+TERM")
		})
	}
	add("put an offer into its queue", func(a *attacker) {
		a.ask("handoff.work.tester.normal."+uuid.NewString()+".7", `{}`)
	})

	add("roll the queues up", func(a *attacker) {
		a.ask("handoff.work."+orElse(me, "evil")+".normal."+uuid.NewString()+".7", `{}`, "Nats-Rollup", "all")
	})

	// The ledger.
	add("read its ledger", func(a *attacker) {
		a.ask("$JS.API.STREAM.MSG.GET.HANDOFF_LEDGER", `{"last_by_subj":"handoff.ledger.`+a.w.waiting+`"}`)
	})
	add("write its ledger", func(a *attacker) { a.ask("handoff.ledger."+a.w.waiting, `{"junk":true}`) })
	add("write its ledger in a batch", func(a *attacker) {
		a.ask("handoff.ledger."+a.w.waiting, `{"junk":true}`, "Nats-Batch-Id", "b"+me, "Nats-Batch-Sequence", "1", "Nats-Batch-Commit", "1")
	})
	add("roll the ledger up", func(a *attacker) { a.ask("handoff.ledger."+a.w.waiting, `{}`, "Nats-Rollup", "all") })
	add("an entry that expires", func(a *attacker) { a.ask("handoff.ledger."+a.w.waiting, `{}`, "Nats-TTL", "1s") })

	// The directory, the bodies and the timers.
	add("change its profile", func(a *attacker) { a.ask("$KV.HANDOFF_AGENTS.tester", `{"id":"tester","paused":true}`) })
	add("forge a holder of its", func(a *attacker) { a.ask("$KV.HANDOFF_HOLDERS.holder.evil", `{"id":"evil","agent":"tester"}`) })
	add("roll the agents up", func(a *attacker) {
		a.ask("$KV.HANDOFF_AGENTS."+orElse(me, "tester"), `{}`, "Nats-Rollup", "all")
	})
	add("roll the holders up", func(a *attacker) { a.ask("$KV.HANDOFF_HOLDERS.holder.evil", `{}`, "Nats-Rollup", "all") })
	add("roll the bodies up", func(a *attacker) { a.ask("$O.HANDOFF_BLOBS.M.evil", `{}`, "Nats-Rollup", "all") })
	add("roll the timers up", func(a *attacker) { a.ask("handoff.timer.evil.1", `{}`, "Nats-Rollup", "all") })
	add("a timer that forges a wake-up", func(a *attacker) {
		a.ask("handoff.timer.evil.1", `x`, "Nats-Schedule", "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target", "handoff.due."+a.w.waiting+".1")
	})
	add("an offer that forges an offer, later", func(a *attacker) {
		a.ask("handoff.work."+orElse(me, "evil")+".normal."+uuid.NewString()+".7", `x`, "Nats-Schedule", "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target", "handoff.work.tester.normal."+a.w.waiting+".9")
	})
	add("a trace into the ledger", func(a *attacker) {
		a.tell("handoff.v1."+orElse(me, "evil")+".status", `{}`, "Nats-Trace-Dest", "handoff.ledger."+a.w.waiting)
	})

	// The streams and what leads them.
	for _, name := range streams {
		api("purge "+name, "STREAM.PURGE."+name, ``)
		api("delete "+name, "STREAM.DELETE."+name, ``)
	}
	api("change a stream", "STREAM.UPDATE.HANDOFF_WORK", `{"name":"HANDOFF_WORK","subjects":["handoff.work.>"],"retention":"workqueue","max_msgs":1}`)
	api("copy the ledger out", "STREAM.SNAPSHOT.HANDOFF_LEDGER", `{"deliver_subject":"evil"}`)
	api("restore a stream", "STREAM.RESTORE.EVIL", `{"config":{"name":"EVIL","subjects":["handoff.v1.>"]},"state":{}}`)
	api("a stream that takes questions", "STREAM.CREATE.EVIL", `{"name":"EVIL","subjects":["handoff.v1.>","handoff.query.>"],"retention":"limits"}`)
	api("a mirror of the ledger", "STREAM.CREATE.EVIL", `{"name":"EVIL","mirror":{"name":"HANDOFF_LEDGER"},"retention":"limits"}`)
	api("remove an offer by its sequence", "STREAM.MSG.DELETE.HANDOFF_WORK", `{"seq":WORK}`)
	api("remove an entry", "STREAM.MSG.DELETE.HANDOFF_LEDGER", `{"seq":1}`)
	api("delete its consumer", "CONSUMER.DELETE.HANDOFF_WORK.tester-normal", ``)
	api("pause its consumer", "CONSUMER.PAUSE.HANDOFF_WORK.tester-normal", `{"pause_until":"2100-01-01T00:00:00Z"}`)
	api("depose a leader", "STREAM.LEADER.STEPDOWN.HANDOFF_LEDGER", ``)
	api("depose a consumer's leader", "CONSUMER.LEADER.STEPDOWN.HANDOFF_WORK.tester-normal", ``)
	api("list the streams", "STREAM.LIST", ``)
	api("list the consumers", "CONSUMER.LIST.HANDOFF_WORK", ``)
	add("ask the system", func(a *attacker) { a.ask("$SYS.REQ.SERVER.PING", ``) })
	add("end an account", func(a *attacker) { a.ask("$SYS.REQ.CLAIMS.DELETE", ``) })

	// The traffic of others, and posing as who answers them.
	for _, subject := range []string{">", "handoff.>", "handoff.work.>", "handoff.ledger.*", "handoff.v1.tester.>", "handoff.query.*", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$KV.>", "$O.>", "$SYS.>", "$SRV.>", "_INBOX_tester.>", "_INBOX_victim.>", "_R_.>"} {
		add("listen to "+subject, func(a *attacker) {
			a.listen(subject)
			a.w.publishSecrets()
			a.readListened()
		})
	}
	add("answer as the gateway", func(a *attacker) { a.tell("_INBOX_tester.x", `{"granted":true}`) })
	return all
}

// governanceAttacks are on the health of an agent and on what a workflow shares.
func governanceAttacks() []attack {
	id := protocol.WorkspaceID(nightly)
	return []attack{
		{"forge its health", func(a *attacker) {
			a.ask("$KV.HANDOFF_HOLDERS.health.tester", `{"opened_at":"2100-01-01T00:00:00Z","open_until":"2100-01-02T00:00:00Z"}`)
		}},
		{"write its workspace", func(a *attacker) { a.ask("handoff.workspace."+id, `{"junk":true}`) }},
		{"read its workspace", func(a *attacker) {
			a.ask("$JS.API.STREAM.MSG.GET.HANDOFF_WORKSPACES", `{"last_by_subj":"handoff.workspace.`+id+`"}`)
		}},
		{"roll the workspaces up", func(a *attacker) { a.ask("handoff.workspace.evil", `{}`, "Nats-Rollup", "all") }},
	}
}

// fill puts the victim into a request.
func (a *attacker) fill(body string) string {
	return strings.ReplaceAll(body, ":WORK}", fmt.Sprint(":", a.w.work, "}"))
}

func orElse(name, other string) string {
	if name == "" {
		return other
	}
	return name
}

// publishSecrets has the engine's account say something on subjects that others must not hear.
func (w *world) publishSecrets() {
	for _, subject := range []string{"handoff.v1.tester.claim", "handoff.query.list", "_INBOX_tester.secret", "_INBOX_victim.secret"} {
		if err := w.nc.Publish(subject, []byte("secret")); err != nil {
			w.t.Error(err)
		}
	}
	if err := w.nc.FlushTimeout(testTimeout); err != nil {
		w.t.Error(err)
	}
}
