package record_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// TestProjection checks that the selected parts equal those of Decode, and the rest is empty.
func TestProjection(t *testing.T) {
	body, err := protocol.EncodePackage(protocol.Package{Source: "lead", Target: protocol.Target{Agent: "ann"}, Reason: "it is \"ready\"",
		Task: protocol.Task{ID: "t", Description: "größer"}})
	if err != nil {
		t.Fatal(err)
	}
	at := protocol.Meta{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	ticket := protocol.NewTicket()
	made := protocol.Record{ID: "id", Events: []protocol.Event{
		&protocol.Submitted{Meta: at, Ticket: ticket, Package: body, Policy: protocol.DefaultPolicy()},
		&protocol.Offered{Meta: at, Agent: "ann"}, &protocol.Reminded{Meta: at},
	}, State: protocol.State{Ticket: ticket, Phase: protocol.Pending, Offer: protocol.Self, Message: "m", Agent: "ann"}}
	raw, err := record.Encode(made)
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.NewProjection([]string{"ticket", "phase", "offer"}, protocol.EventSubmitted, protocol.EventReminded).Decode(raw, 17)
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
	if description, reason, err := record.PackageText(submitted.Package); err != nil || description != "größer" || reason != `it is "ready"` {
		t.Errorf("%q, %q, %v", description, reason, err)
	}
	for _, broken := range []string{"", "[]", "{}", `{"v":1,"id":"x","events":[{"type":"submitted","at":1}],"state":{}}`, `{"v":2,"id":"x","state":{}}`} {
		if _, err := record.NewProjection([]string{"phase"}, protocol.EventSubmitted).Decode([]byte(broken), 1); err == nil {
			t.Errorf("%s was read", broken)
		}
	}
	if _, _, err := record.PackageText([]byte(`{"reason":1}`)); err == nil {
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
		got, err := record.PackageOutputSchema([]byte(body))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", body, got, err)
		}
	}
	for _, broken := range []string{`{"output_schema"`, `{"expectations":{"output_schema":}}`, `{"output_schema":1} {}`} {
		_, err := record.PackageOutputSchema([]byte(broken))
		if !errors.Is(err, &protocol.Error{Code: protocol.CodeMalformed, Field: "package"}) {
			t.Errorf("%s: %v", broken, err)
		}
	}
}
