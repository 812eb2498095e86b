//go:build proof

package hostile

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// manySubjects are thousands of subjects with little in them.
func manySubjects(format string) (all []message) {
	for i := range 3_000 {
		all = append(all, message{fmt.Sprintf(format, uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "%d", i)), i), nil, []byte("{}")})
	}
	return all
}

func (w *world) toQueues() (all []message) {
	n := 0
	for _, agent := range []string{honest, "poller", "limited"} {
		for i, body := range append(mutated(w.offer), foreignBodies...) {
			if agent != honest && i%4 != 0 {
				continue
			}
			n++
			lane := protocol.Priorities[n%4]
			ticket := w.victim
			if n%2 == 0 {
				ticket = uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "offer %d", n)).String()
			}
			seq := uint64(n)
			if n%3 == 0 {
				seq = w.offerKey.Sequence
			}
			body = []byte(strings.ReplaceAll(strings.ReplaceAll(string(body), `"agent":"parked"`, `"agent":"`+agent+`"`), w.victim, ticket))
			all = append(all, message{fmt.Sprintf("handoff.work.%s.%s.%s.%d", agent, lane, ticket, seq), header(n), body})
		}
		for _, rest := range []string{"", ".normal", ".normal.x", ".none.x.1", ".normal.x.-1", ".high.x.99999999999999999999", ".low.a.1.b.2", ".critical.*x.1"} {
			all = append(all, messagesFor("handoff.work."+agent+rest, foreignBodies[:6])...)
		}
	}
	all = append(all, messagesFor("handoff.work.sentinel", foreignBodies)...)
	all = append(all, messagesFor("handoff.work.nobody.normal."+w.victim+".1", foreignBodies)...)
	all = append(all, manySubjects("handoff.work."+honest+".critical.%s.%d")...)
	return append(all, manySubjects("handoff.work.poller.critical.%s.%d")...)
}

func (w *world) toTimers() (all []message) {
	for _, at := range []string{"handoff.due.", "handoff.timer."} {
		for _, rest := range []string{w.victim + ".1", w.honest[0] + ".1", "x", "x.y", "a.b.c.d", w.victim + ".-1", w.victim + ".18446744073709551615", "*.1"} {
			all = append(all, messagesFor(at+rest, foreignBodies)...)
		}
		all = append(all, manySubjects(at+"%s.%d")...)
	}
	return append(all, w.toSupervisors()...)
}

// toSupervisors announces appends that are none, and wakes supervisors at times that are none.
func (w *world) toSupervisors() (all []message) {
	unknown := uuid.NewSHA1(uuid.Nil, []byte("announced")).String()
	for _, ticket := range []string{w.victim, w.honest[0], unknown, "x", "no-ticket"} {
		for _, word := range []string{
			"now", "later", "none", "NOW", "x", " ", ";", "; ended=", "now; ended=honest.normal.1", "none; ended=honest.normal.0", "later; ended=honest..1",
			"none; ended=*.normal.1", "none; ended=>.high.1", "now; ended=a.b.c.d", "none; ended=honest.normal.99999999999999999999", strings.Repeat("now", 3_000),
		} {
			for _, number := range []string{"0", "1", "18446744073709551615"} {
				all = append(all, message{"handoff.due." + ticket + "." + number, nats.Header{"Handoff-Attention": {word}}, nil})
			}
		}
	}
	for i, body := range append([]string{
		"", "x", "never", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2000-01-01T00:00:00Z",
		"9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "10000-01-01T00:00:00Z", time.Now().UTC().Format(time.RFC3339Nano), time.Now().Add(time.Hour).Format(time.RFC3339Nano),
	}, strings.Repeat("9", 10_000)) {
		all = append(all, message{fmt.Sprintf("handoff.due.%s.%d", unknown, i), nil, []byte(body)})
	}
	return all
}

func (w *world) toAgents() (all []message) {
	valid, err := json.Marshal(protocol.Profile{ID: "junk", Name: "n", Description: "d", Capabilities: []protocol.Capability{{ID: "c", Proficiency: 1}}, MaxConcurrency: 3, Paused: false, MaxRisk: "low"})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, body := range append(mutated(valid), foreignBodies...) {
		id := fmt.Sprint("junk", i)
		body = []byte(strings.ReplaceAll(string(body), `"id":"junk"`, `"id":"`+id+`"`))
		all = append(all, message{"$KV.HANDOFF_AGENTS." + id, header(i), body})
	}
	for _, key := range []string{"a.b.c", "human", "system", "_", strings.Repeat("k", 300), "a=b", "a/b", "\u00e9", "spoiled"} {
		all = append(all, messagesFor("$KV.HANDOFF_AGENTS."+key, foreignBodies[:12])...)
	}
	return append(append(all, w.toSchedules()...), manySubjects("$KV.HANDOFF_AGENTS.%s_%d")...)
}

// toSchedules has records of schedules without a package, some of which fire, and packages without a
// schedule.
func (w *world) toSchedules() (all []message) {
	valid, err := json.Marshal(protocol.Schedule{Name: "junk", Cron: "* * * * *", Zone: "Europe/Berlin", Missed: protocol.MissedAll, Overlap: protocol.OverlapQueue,
		Firing: []time.Time{time.Unix(0, 0).UTC()}, Last: &protocol.Firing{Ticket: w.victim}})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, body := range append(mutated(valid), foreignBodies...) {
		name := fmt.Sprint("junk", i)
		body = []byte(strings.ReplaceAll(string(body), `"name":"junk"`, `"name":"`+name+`"`))
		all = append(all, message{"$KV.HANDOFF_AGENTS.schedule." + name, header(i), body})
	}
	for _, key := range []string{"package.a", "schedule", "package", "schedule.a.b"} {
		all = append(all, messagesFor("$KV.HANDOFF_AGENTS."+key, foreignBodies[:12])...)
	}
	return all
}

// toSignals has signals for a rule and for none, records of rules without a template, and templates
// without a rule.
func (w *world) toSignals() (all []message) {
	rule := protocol.Rule{Name: "junk", Signal: "junk", Rate: protocol.RuleRateMax}
	template := json.RawMessage(`{"target": {"agent": "parked"}, "reason": "r", "task": {"description": {"$": ""}}}`)
	if _, err := w.b.Rules().Put(w.ctx, rule, template); err != nil {
		w.t.Fatal(err)
	}
	unknown := uuid.NewSHA1(uuid.Nil, []byte("parent")).String()
	for _, id := range []string{"", "1", " ", "a b", "*.>", strings.Repeat("i", 3_000), "\u00e9"} {
		for _, parent := range []string{"", w.victim, unknown, "x"} {
			for _, body := range foreignBodies {
				all = append(all, message{"handoff.signal.junk", nats.Header{"Handoff-Signal-Id": {id}, "Handoff-Parent": {parent}}, body})
			}
		}
	}
	for _, name := range []string{"none", "a.b", "_", strings.Repeat("s", 300), "\u00e9"} {
		all = append(all, messagesFor("handoff.signal."+name, foreignBodies)...)
	}
	valid, err := json.Marshal(rule)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, body := range append(mutated(valid), foreignBodies...) {
		name := fmt.Sprint("junk", i)
		body = []byte(strings.ReplaceAll(string(body), `"name":"junk"`, `"name":"`+name+`"`))
		all = append(all, message{"$KV.HANDOFF_AGENTS.rule." + name, header(i), body})
	}
	for _, key := range []string{"template.a", "rule", "template", "rule.a.b", "signals.unknown"} {
		all = append(all, messagesFor("$KV.HANDOFF_AGENTS."+key, foreignBodies[:12])...)
	}
	return all
}

// sharedKey is the key of a limit of the agent limited.
const sharedKey = "shared"

func (w *world) toHolders() (all []message) {
	directory, err := w.b.Directory(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for id := range directory.Holders {
		for _, body := range foreignBodies[3:9] {
			all = append(all, message{"$KV.HANDOFF_HOLDERS.holder." + id, nil, body})
		}
	}
	id := uuid.NewString()
	valid, err := json.Marshal(protocol.Holder{ID: id, Agent: "parked", LeaseMS: 30_000, Slots: 3, Busy: 1, StartedAt: time.Now().UTC()})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, body := range append(mutated(valid), foreignBodies...) {
		own := uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "holder %d", i)).String()
		all = append(all, message{"$KV.HANDOFF_HOLDERS.holder." + own, header(i), []byte(strings.ReplaceAll(string(body), id, own))})
	}
	slots := protocol.Slots{w.victim: {Holder: id, Offer: 1, At: time.Now().UTC()}, "x": {Holder: id}, "> *": {Holder: id}, "": {}}
	body, err := json.Marshal(slots)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, agent := range []string{"limited", honest, "poller", "a.b"} {
		all = append(all, messagesFor("$KV.HANDOFF_HOLDERS.slots."+agent, append(mutated(body), foreignBodies...))...)
	}
	use := protocol.KeyUse{Key: sharedKey, SpanMS: 60_000, Starts: []int64{time.Now().UnixMilli()}, PausedUntil: time.Now().Add(time.Second), PausedBy: w.victim,
		Places: map[string]protocol.KeyPlace{w.victim: {Slot: slots[w.victim], Agent: "limited"}}, Waiting: []protocol.KeyWait{{Ticket: w.victim, Agent: "limited"}}}
	if body, err = json.Marshal(use); err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(sharedKey))
	for _, key := range []string{hex.EncodeToString(sum[:16]), "a.b", "x"} {
		all = append(all, messagesFor("$KV.HANDOFF_HOLDERS.limit."+key, append(mutated(body), foreignBodies...))...)
	}
	for _, agent := range []string{honest, "poller", "a.b"} {
		all = append(all, messagesFor("$KV.HANDOFF_HOLDERS.health."+agent, foreignBodies)...)
	}
	for _, key := range []string{"probe", "holder", "holder.a.b", "other", "slots"} {
		all = append(all, messagesFor("$KV.HANDOFF_HOLDERS."+key, foreignBodies)...)
	}
	return append(all, manySubjects("$KV.HANDOFF_HOLDERS.holder.%s_%d")...)
}

func (w *world) toWorkspaces() (all []message) {
	now := time.Now().UTC()
	opened := protocol.WorkspaceEvent{Type: protocol.WorkspaceOpened, At: now, By: protocol.Human, Name: "junk"}
	record := protocol.WorkspaceRecord{ID: protocol.WorkspaceID("junk"), Events: []protocol.WorkspaceEvent{opened}, State: protocol.Workspace{Name: "junk", OpenedAt: now, UpdatedAt: now}}
	valid, err := json.Marshal(record)
	if err != nil {
		w.t.Fatal(err)
	}
	for i, body := range append(mutated(valid), foreignBodies...) {
		id := protocol.WorkspaceID(fmt.Sprint("junk ", i))
		all = append(all, message{"handoff.workspace." + id, header(i), []byte(strings.ReplaceAll(string(body), record.ID, id))})
	}
	for _, id := range []string{record.ID, "x", "_", w.victim, strings.Repeat("k", 300)} {
		all = append(all, messagesFor("handoff.workspace."+id, foreignBodies)...)
	}
	return append(all, manySubjects("handoff.workspace.%s.%d")...)
}

// toBodies spoils bodies of handoffs that wait for the agent that polls.
func (w *world) toBodies() (all []message) {
	for i, body := range foreignBodies[6:12] {
		large := fmt.Sprint(i, strings.Repeat(" large", 60_000))
		ticket := w.submit("poller", large)
		e, err := w.b.Next(w.ctx, ticket, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		change, err := broker.DecodeChange(e)
		if err != nil {
			w.t.Fatal(err)
		}
		_, ref := protocol.BodyOf(change.Record.Events[0])
		subject := "$O.HANDOFF_BLOBS.M." + base64.URLEncoding.EncodeToString([]byte(ref.Digest))
		all = append(all, message{subject, nil, body})
	}
	for _, subject := range []string{"M.x", "M.a.b", "C.nuid", "C.a.b"} {
		all = append(all, messagesFor("$O.HANDOFF_BLOBS."+subject, foreignBodies)...)
	}
	return all
}

func (w *world) toServices() (all []message) {
	for _, verb := range []string{"list", "count", "family", "figures", "position", "conversation", "none"} {
		all = append(all, messagesFor("handoff.query."+verb, foreignBodies)...)
	}
	for _, verb := range []string{"Register", "ClaimMany", "Acknowledge", "Complete", "Status", "Submit", "none", "at.x.Complete"} {
		all = append(all, messagesFor("handoff.v1."+honest+"."+verb, foreignBodies)...)
	}
	for _, subject := range []string{"handoff.node", "$SRV.PING", "$SRV.INFO.handoff-index", "$SRV.STATS.handoff-gateway"} {
		all = append(all, messagesFor(subject, foreignBodies)...)
	}
	return all
}

func (w *world) toHints() (all []message) {
	for _, subject := range []string{"handoff.feed." + w.honest[0], "handoff.feed.x", "$JS.ACK.HANDOFF_WORK.honest-normal.1.1.1.1.1", "$JS.ACK.HANDOFF_LEDGER.supervisor.1.1.1.1.1", "_INBOX.x.y"} {
		all = append(all, messagesFor(subject, foreignBodies)...)
	}
	return all
}
