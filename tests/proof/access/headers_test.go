//go:build proof

package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
)

// outside are the roles that are in accounts of their own. Whatever headers and replies
// they put on a question that they may ask, the engine stays as it is.
var outside = []string{"sys", "reader", "trusted-submitter", "reviewer", "tester"}

// questions are what a role outside may ask.
func questions(a *attacker) []allowedQuestion {
	switch a.role {
	case "sys":
		return []allowedQuestion{{"$SYS.REQ.SERVER.PING.VARZ", ""}, {"$SYS.REQ.ACCOUNT.PING.STATZ", ""}, {"$SYS.REQ.SERVER.PING.JSZ", ""}}
	case "tester":
		return []allowedQuestion{{"handoff.v1.tester.status", `{"ticket":"` + a.w.held + `"}`}, {"handoff.v1.tester.profile", `{}`}}
	case "reader", "trusted-submitter":
		last := `{"last_by_subj":"$KV.HANDOFF_AGENTS.tester"}`
		return append(allowedQuestions(a), allowedQuestion{"$JS.API.INFO", ""}, allowedQuestion{"$JS.API.STREAM.INFO.OBJ_HANDOFF_BLOBS", ""}, allowedQuestion{"$JS.API.STREAM.MSG.GET.KV_HANDOFF_AGENTS", last})
	}
	return allowedQuestions(a)
}

// places are subjects of the engine's account at which a message does harm. Those at which
// a role may write by itself are left out: a trace goes there as well (see holes).
func places(a *attacker) []string {
	return slices.DeleteFunc([]string{
		"handoff.ledger." + a.w.waiting, "handoff.ledger." + uuid.NewString(),
		"handoff.work.tester.normal." + uuid.NewString() + ".7", "handoff.work.sentinel",
		"handoff.timer." + a.w.waiting + ".1", "handoff.due." + a.w.waiting + ".1",
		"$KV.HANDOFF_AGENTS.tester", "$KV.HANDOFF_AGENTS.evil", "$KV.HANDOFF_HOLDERS.holder.evil", "$O.HANDOFF_BLOBS.M.evil",
		"$JS.API.STREAM.PURGE.HANDOFF_WORK", "$JS.API.STREAM.DELETE.HANDOFF_LEDGER", "$JS.API.STREAM.DELETE.KV_HANDOFF_AGENTS",
		"$JS.API.CONSUMER.DELETE.HANDOFF_WORK.tester-normal", "$JS.API.STREAM.LEADER.STEPDOWN.HANDOFF_LEDGER",
		a.w.ack, a.w.ackV2,
	}, func(place string) bool {
		return strings.Contains(a.role, "trusted-submitter") &&
			(strings.HasPrefix(place, "handoff.ledger.") || strings.HasPrefix(place, "handoff.work.tester.") || strings.HasPrefix(place, "handoff.due."))
	})
}

// headers are what has the server, or its streams, do more with a message than to pass
// it on.
func headers(a *attacker) (all []nats.Header) {
	for _, place := range places(a) {
		all = append(all,
			nats.Header{"Nats-Trace-Dest": {place}},
			nats.Header{"Nats-Trace-Dest": {place}, "Nats-Trace-Only": {"true"}},
			nats.Header{"Nats-Trace-Dest": {place}, "Nats-Trace-Origin-Account": {"HANDOFF"}, "Nats-Trace-Hop": {"1"}},
			nats.Header{"Nats-Trace-Dest": {place}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
			nats.Header{"Nats-Schedule": {"@at 2020-01-01T00:00:00Z"}, "Nats-Schedule-Target": {place}},
			nats.Header{"Nats-Subject": {place}, "Nats-Stream": {"HANDOFF_LEDGER"}, "Nats-Stream-Source": {"HANDOFF_LEDGER 1 > > " + place}})
	}
	last := fmt.Sprint(a.w.work)
	return append(all, nats.Header{},
		nats.Header{"Nats-Request-Info": {`{"acc":"HANDOFF","svc":"HANDOFF","user":"operator","name":"evil"}`}},
		nats.Header{"Nats-Rollup": {"all"}}, nats.Header{"Nats-Rollup": {"sub"}}, nats.Header{"Nats-Schedule-Rollup": {"sub"}, "Nats-Schedule": {"@every 1s"}},
		nats.Header{"Nats-TTL": {"1s"}}, nats.Header{"Nats-Marker-Reason": {"Purge"}}, nats.Header{"KV-Operation": {"PURGE"}}, nats.Header{"KV-Operation": {"DEL"}},
		nats.Header{"Nats-Incr": {"+1"}}, nats.Header{"Nats-Counter-Sources": {"{}"}}, nats.Header{"Nats-Msg-Id": {"evil"}},
		nats.Header{"Nats-Expected-Stream": {"HANDOFF_LEDGER"}, "Nats-Expected-Last-Subject-Sequence": {last}},
		nats.Header{"Nats-Batch-Id": {"evil"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
		nats.Header{"Nats-Required-Api-Level": {"99"}}, nats.Header{"Nats-Pin-Id": {"evil"}}, nats.Header{"Status": {"503"}})
}

// oddMessage is one message of the table: a question with headers, whose answer goes somewhere.
type oddMessage struct {
	pad    allowedQuestion
	header nats.Header
	reply  string
}

func (o oddMessage) String() string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(o.header)) {
		words = append(words, key+": "+strings.Join(o.header[key], ","))
	}
	return fmt.Sprintf("%s, answered to %q, with [%s]", o.pad.subject, o.reply, strings.Join(words, "; "))
}

// TestHeadersFromOutside sends, from each account outside, each question that it may ask,
// with each header and each place as the reply, through a running gateway and index. All
// streams and consumers are compared before and after.
func TestHeadersFromOutside(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			w := newWorld(t, servers)
			w.awaitOutput(w.start("gateway", "gateway"), "ready")
			w.watched = true
			for _, role := range outside {
				t.Run(role, func(t *testing.T) {
					w.t = t
					a := &attacker{w: w, t: t, role: role, nc: w.dialAt(w.nodes[len(w.nodes)-1], role)}
					a.sendTable()
				})
			}
			w.t = t
		})
	}
}

// sendTable sends all messages of the table, a header at a time, and names those after
// which anything is otherwise.
func (a *attacker) sendTable() {
	a.t.Helper()
	replies := append([]string{"", a.nc.NewInbox()}, places(a)...)
	before, sent := a.w.look(), 0
	for _, header := range headers(a) {
		var all []oddMessage
		for _, p := range questions(a) {
			for _, reply := range replies {
				all = append(all, oddMessage{p, header, reply})
			}
		}
		sent += len(all)
		a.publish(all)
		after, found := a.w.lasting(before, a.w.look())
		if len(found) > 0 {
			a.t.Errorf("%s changes the engine: %s", a.role, strings.Join(found, "; "))
			before = after
			for _, one := range all { // the first of them, if it happens again
				a.publish([]oddMessage{one})
				if after, found = a.w.lasting(before, a.w.look()); len(found) > 0 {
					a.t.Errorf("%s: %s: %s", a.role, one, strings.Join(found, "; "))
					before = after
					break
				}
			}
		}
	}
	a.t.Logf("%s: %d messages changed nothing", a.role, sent)
}

// publish sends messages, and returns when the server has them. What it refuses is as
// good as what it drops.
func (a *attacker) publish(all []oddMessage) {
	a.t.Helper()
	for _, o := range all {
		header := maps.Clone(o.header)
		maps.Copy(header, gatewayHeader())
		if err := a.nc.PublishMsg(&nats.Msg{Subject: o.pad.subject, Reply: o.reply, Header: header, Data: []byte(o.pad.body)}); err != nil {
			a.t.Fatalf("%s: %v", o, err)
		}
	}
	if err := a.nc.FlushTimeout(testTimeout); err != nil {
		a.t.Fatal(err)
	}
}
