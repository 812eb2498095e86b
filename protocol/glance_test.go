package protocol_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestGlance: what is wanted is as DecodeRecord has it, the rest is empty.
func TestGlance(t *testing.T) {
	body, err := protocol.EncodePackage(protocol.Package{Source: "lead", Target: protocol.Target{Agent: "ann"}, Reason: "it is \"ready\"",
		Task: protocol.Task{ID: "t", Description: "größer"}})
	if err != nil {
		t.Fatal(err)
	}
	at := protocol.Meta{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	ticket := protocol.NewTicket()
	record := protocol.Record{ID: "id", Events: []protocol.Event{
		&protocol.Submitted{Meta: at, Ticket: ticket, Package: body, Policy: protocol.DefaultPolicy()},
		&protocol.Offered{Meta: at, Agent: "ann"}, &protocol.Reminded{Meta: at},
	}, State: protocol.State{Ticket: ticket, Phase: protocol.Pending, Offer: protocol.Self, Message: "m", Agent: "ann"}}
	raw, err := protocol.EncodeRecord(record)
	if err != nil {
		t.Fatal(err)
	}
	got, err := protocol.NewGlance([]string{"ticket", "phase", "offer"}, protocol.EventSubmitted, protocol.EventReminded).Record(raw, 17)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.State; s.Ticket != ticket || s.Phase != protocol.Pending || s.Offer != 17 || s.Message != "" || s.Agent != "" {
		t.Errorf("state %+v", s)
	}
	if len(got.Events) != 2 || got.Events[1].EventType() != protocol.EventReminded {
		t.Fatalf("events %+v", got.Events)
	}
	submitted := got.Events[0].(*protocol.Submitted)
	if !submitted.At.Equal(at.At) || submitted.Policy != (protocol.Policy{}) {
		t.Errorf("submitted %+v", submitted)
	}
	if description, reason, err := protocol.PackageWords(submitted.Package); err != nil || description != "größer" || reason != `it is "ready"` {
		t.Errorf("%q, %q, %v", description, reason, err)
	}
	for _, broken := range []string{"", "[]", "{}", `{"v":1,"id":"x","events":[{"type":"submitted","at":1}],"state":{}}`, `{"v":2,"id":"x","state":{}}`} {
		if _, err := protocol.NewGlance([]string{"phase"}, protocol.EventSubmitted).Record([]byte(broken), 1); err == nil {
			t.Errorf("%s was read", broken)
		}
	}
	if _, _, err := protocol.PackageWords([]byte(`{"reason":1}`)); err == nil {
		t.Error("a reason that is a number was read")
	}
}

func TestPackageOutputSchema(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                    "",
		`{"expectations":null}`: "",
		`{"expectations":[1]}`:  "",
		`{"expectations":{"output_schema":null}}`: "",
		`{"context":{"output_schema":1},"expectations":{"timeout_ms":1,"output_schema": {"type":"x"} },"a":[1]}`: `{"type":"x"}`,
		`{"expect\u0061tions":{"output\u005fschema":true}}`:                                                      `true`,
	} {
		got, err := protocol.PackageOutputSchema([]byte(body))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", body, got, err)
		}
	}
	for _, broken := range []string{"", "{", `{"expectations":{"output_schema":}}`, `{} {}`} {
		_, err := protocol.PackageOutputSchema([]byte(broken))
		if e := refusal(t, err); e.Code != protocol.CodeMalformed || e.Field != "package" {
			t.Errorf("%s: %v", broken, err)
		}
	}
}
