//go:build proof

package access

import (
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// A pad is a question that a role may ask. Its answer can be directed anywhere that the
// server publishes to for the account of that role.
type allowedQuestion struct{ subject, body string }

func allowedQuestions(a *attacker) []allowedQuestion {
	get := allowedQuestion{"$JS.API.STREAM.MSG.GET.HANDOFF_LEDGER", `{"last_by_subj":"handoff.ledger.` + a.w.held + `"}`}
	info := allowedQuestion{"$JS.API.STREAM.INFO.HANDOFF_LEDGER", ""}
	// A consumer that has nothing to give, so that its answer has no body.
	none := allowedQuestion{"$JS.API.CONSUMER.CREATE.HANDOFF_LEDGER.none.handoff.ledger.none", `{"stream_name":"HANDOFF_LEDGER","config":{"name":"none","filter_subject":"handoff.ledger.none","ack_policy":"none"}}`}
	nothingThere := allowedQuestion{"$JS.API.CONSUMER.MSG.NEXT.HANDOFF_LEDGER.none", `{"batch":1,"no_wait":true}`}
	switch a.role {
	case "reader":
		return []allowedQuestion{get, info, {"handoff.query.list", `{}`}}
	case "trusted-submitter":
		return []allowedQuestion{get, info}
	case "index":
		return []allowedQuestion{get, info, none, nothingThere}
	case "supervisor":
		return []allowedQuestion{get, info, none, nothingThere}
	case "gateway":
		return []allowedQuestion{get, info, {"$KV.HANDOFF_HOLDERS.probe", ""}, {"$JS.API.CONSUMER.MSG.NEXT.HANDOFF_WORK.builder-normal", `{"batch":1,"no_wait":true}`}}
	case "builder":
		return []allowedQuestion{get, info, {"$KV.HANDOFF_HOLDERS.probe", ""}, {"$JS.API.CONSUMER.MSG.NEXT.HANDOFF_WORK.builder-normal", `{"batch":1,"no_wait":true}`}}
	case "reviewer":
		return []allowedQuestion{{"handoff.v1.reviewer.status", `{"ticket":"` + a.w.held + `"}`}, {"handoff.v1.reviewer.profile", `{}`}}
	}
	return nil
}

// gatewayHeader is the header of all that is asked of a gateway.
func gatewayHeader() nats.Header { return nats.Header{"Handoff-Request": {"1"}} }

// injections direct the answers to what a role may ask at what it may not write.
func injections(string) []attack {
	var all []attack
	for _, target := range []struct {
		name    string
		subject func(a *attacker) string
	}{
		{"the ledger", func(a *attacker) string { return "handoff.ledger." + a.w.waiting }},
		{"its queue", func(*attacker) string { return "handoff.work.tester.normal." + uuid.NewString() + ".7" }},
		{"the timers", func(a *attacker) string { return "handoff.timer." + a.w.waiting + ".1" }},
		{"its profile", func(*attacker) string { return "$KV.HANDOFF_AGENTS.tester" }},
		{"the holders", func(*attacker) string { return "$KV.HANDOFF_HOLDERS.holder.evil" }},
		{"the bodies", func(*attacker) string { return "$O.HANDOFF_BLOBS.M.evil" }},
		{"the API, to purge", func(*attacker) string { return "$JS.API.STREAM.PURGE.HANDOFF_WORK" }},
		{"the API, to delete its consumer", func(*attacker) string { return "$JS.API.CONSUMER.DELETE.HANDOFF_WORK.tester-normal" }},
		{"the API, to delete the ledger", func(*attacker) string { return "$JS.API.STREAM.DELETE.HANDOFF_LEDGER" }},
		{"an acknowledgement", func(a *attacker) string { return a.w.ack }},
		{"an acknowledgement in the newer form", func(a *attacker) string { return a.w.ackV2 }},
	} {
		all = append(all, attack{"an answer into " + target.name, func(a *attacker) {
			for _, p := range allowedQuestions(a) {
				a.send(p.subject, target.subject(a), gatewayHeader(), p.body)
			}
		}})
	}
	all = append(all, attack{"an answer to its inbox or the gateway", func(a *attacker) {
		victim, err := a.w.nc.SubscribeSync("_INBOX_tester.>")
		if err != nil {
			a.t.Fatal(err)
		}
		gateway, err := a.w.nc.SubscribeSync("handoff.v1.tester.>")
		if err != nil {
			a.t.Fatal(err)
		}
		defer func() { _, _ = victim.Unsubscribe(), gateway.Unsubscribe() }()
		for _, p := range allowedQuestions(a) {
			a.send(p.subject, "_INBOX_tester.x", gatewayHeader(), p.body)
			a.send(p.subject, "handoff.v1.tester.complete", gatewayHeader(), p.body)
		}
		a.w.look() // behind all of it
		for _, sub := range []interface{ Pending() (int, int, error) }{victim, gateway} {
			if n, _, _ := sub.Pending(); n > 0 {
				a.noteOutcome(changed, "it got there")
			}
		}
	}})
	return all
}
