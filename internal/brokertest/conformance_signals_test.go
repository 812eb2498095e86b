package brokertest

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// signalCases share one consumer, so they run one after another.
var signalCases = []conformanceCase{
	{"a signal is stored once, and delivered until it is done", signalOnce},
	{"a signal that is not done is delivered again", signalAgain},
	{"a signal over the limits is refused", signalLimits},
	{"the directory shows rules, and not their templates as agents", signalRules},
}

func (k *kit) pullSignal(name string) broker.SignalDelivery {
	k.Helper()
	var got broker.SignalDelivery
	k.until("the signal "+name+" is delivered", func() bool {
		all, err := k.PullSignals(k.ctx, 1, time.Second)
		k.must(err)
		for _, one := range all {
			if one.Signal().Name == name {
				got = one
			} else {
				k.must(one.Again(50 * time.Millisecond))
			}
		}
		return got != nil
	})
	return got
}

func signalOnce(k *kit) {
	sent := protocol.Signal{Name: k.agent(), ID: "a/1", Payload: json.RawMessage(`{"n": 1}`), Parent: protocol.NewTicket()}
	for range 3 {
		k.must(k.PutSignal(k.ctx, sent))
	}
	other := sent
	other.Name = k.agent()
	k.must(k.PutSignal(k.ctx, other)) // of another name, with the same id
	n, err := k.SignalsWaiting(k.ctx)
	if k.must(err); n != 2 {
		k.Errorf("%d signals wait, sent 2", n)
	}
	first := k.pullSignal(sent.Name)
	if got := first.Signal(); got.ID != sent.ID || got.Parent != sent.Parent || string(got.Payload) != string(sent.Payload) || first.Attempt() != 1 || first.At().IsZero() {
		k.Errorf("delivered %+v, attempt %d", got, first.Attempt())
	}
	k.must(first.Again(time.Millisecond))
	second := k.pullSignal(sent.Name)
	if second.Attempt() != 2 {
		k.Errorf("attempt %d after it was delayed", second.Attempt())
	}
	k.must(second.Done())
	k.must(k.pullSignal(other.Name).Done())
	k.until("none is left", func() bool {
		n, err := k.SignalsWaiting(k.ctx)
		return err == nil && n == 0
	})
	all, err := k.PullSignals(k.ctx, 1, 10*time.Millisecond)
	if k.must(err); len(all) != 0 {
		k.Errorf("delivered %+v, and all are done", all[0].Signal())
	}
}

func signalAgain(k *kit) {
	sent := protocol.Signal{Name: k.agent(), ID: "1"}
	k.must(k.PutSignal(k.ctx, sent))
	k.pullSignal(sent.Name)
	again := k.pullSignal(sent.Name)
	if again.Attempt() != 2 || len(again.Signal().Payload) != 0 {
		k.Errorf("attempt %d of %+v", again.Attempt(), again.Signal())
	}
	k.must(again.Done())
}

func signalLimits(k *kit) {
	full := `"` + strings.Repeat("x", protocol.SignalBytesMax-2) + `"`
	sent := protocol.Signal{Name: k.agent(), ID: strings.Repeat("i", protocol.SignalIDBytesMax), Payload: json.RawMessage(full), Parent: protocol.NewTicket()}
	k.must(k.PutSignal(k.ctx, sent))
	one := k.pullSignal(sent.Name)
	if len(one.Signal().Payload) != len(full) {
		k.Errorf("%d bytes came", len(one.Signal().Payload))
	}
	k.must(one.Done())
	for _, change := range []func(*protocol.Signal){
		func(s *protocol.Signal) { s.Payload = json.RawMessage(`"x` + full[1:]) },
		func(s *protocol.Signal) { s.Payload = json.RawMessage(`{`) },
		func(s *protocol.Signal) { s.Name = "a.b" },
		func(s *protocol.Signal) { s.Name = ">" },
		func(s *protocol.Signal) { s.ID = "" },
		func(s *protocol.Signal) { s.ID = "a b" },
		func(s *protocol.Signal) { s.ID += "i" },
		func(s *protocol.Signal) { s.Parent = "x" },
	} {
		bad := sent
		if change(&bad); k.PutSignal(k.ctx, bad) == nil {
			k.Errorf("stored: %.200v", bad)
		}
	}
}

func signalRules(k *kit) {
	r := protocol.Rule{Name: k.agent(), Signal: "order", Rate: 1}
	body, err := json.Marshal(r)
	k.must(err)
	key := broker.RecordKey{Kind: broker.RuleRecord, Name: r.Name}
	_, err = k.PutRecord(k.ctx, broker.RecordKey{Kind: broker.TemplateRecord, Name: r.Name}, []byte(`{}`), 0)
	k.must(err)
	rev, err := k.PutRecord(k.ctx, key, body, 0)
	k.must(err)
	k.until("the directory shows the rule", func() bool {
		d, err := k.Directory(k.ctx)
		k.must(err)
		_, isAgent := d.Agents[r.Name]
		return d.Rules[r.Name].Signal == r.Signal && !isAgent
	})
	_, err = k.PutRecord(k.ctx, key, []byte(`{"name":"other"}`), rev)
	k.must(err)
	k.until("an unreadable record is left out", func() bool {
		d, err := k.Directory(k.ctx)
		k.must(err)
		_, has := d.Rules[r.Name]
		return !has
	})
	k.must(k.RemoveRecord(k.ctx, key))
}
