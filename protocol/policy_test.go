package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// A policy is written without what is as usual, and read with it.
func TestPolicyJSON(t *testing.T) {
	usual := protocol.DefaultPolicy()
	odd := usual
	odd.MaxAttempts, odd.QueueTimeoutMS, odd.ReminderPercent = 7, 1000, 0
	for text, want := range map[string]protocol.Policy{
		`{}`: usual,
		`{"queue_timeout_ms":1000,"reminder_percent":0,"max_attempts":7}`: odd,
	} {
		got, err := json.Marshal(want)
		if err != nil || string(got) != text {
			t.Errorf("written as %s, want %s (%v)", got, text, err)
		}
		into := protocol.Policy{MaxConditions: 99} // what stood there before does not stay
		if err := json.Unmarshal([]byte(text), &into); err != nil || into != want {
			t.Errorf("%s is read as %+v (%v)", text, into, err)
		}
		state, err := stateWith(text)
		if err != nil || state.Policy != want {
			t.Errorf("in a state, %s is read as %+v (%v)", text, state.Policy, err)
		}
	}
	type whole protocol.Policy // as it was written once: all fields
	for _, want := range []protocol.Policy{usual, odd} {
		text, err := json.Marshal(whole(want))
		if err != nil {
			t.Fatal(err)
		}
		state, err := stateWith(string(text))
		if err != nil || state.Policy != want {
			t.Errorf("%s is read as %+v (%v)", text, state.Policy, err)
		}
	}
}

// stateWith reads a state with this policy out of a record.
func stateWith(policy string) (protocol.State, error) {
	_, state, err := record.DecodeState([]byte(`{"v":1,"id":"r","events":[],"state":{"ticket":"t","policy":`+policy+`}}`), 1)
	return state, err
}
