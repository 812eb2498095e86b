//go:build proof

package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// What came of an attack, from harmless to grave.
const (
	denied  = "denied"  // the server said so
	nothing = "nothing" // it let it pass, and nothing came of it
	refused = "refused" // the receiver refused
	read    = "READ"    // the attacker got what it should not
	changed = "CHANGED" // the engine is not what it was
)

// answerTimeout bounds the wait for an answer. Where no process listens the server says so at
// once, so that it rarely passes.
const answerTimeout = 10 * time.Second

// attacker is a client with the credentials of a role.
type attacker struct {
	w    *world
	t    *testing.T
	role string
	nc   *nats.Conn
	subs []*nats.Subscription

	outcome string
	detail  string
}

// noteOutcome notes an outcome, unless there was a worse one.
func (a *attacker) noteOutcome(outcome, detail string) {
	order := map[string]int{"": 0, denied: 1, nothing: 2, refused: 3, read: 4, changed: 5}
	if order[outcome] > order[a.outcome] {
		a.outcome, a.detail = outcome, detail
	}
}

// send publishes, and tells whether the server let it pass.
func (a *attacker) send(subject, reply string, header nats.Header, body string) bool {
	a.t.Helper()
	before := a.nc.LastError()
	if err := a.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: []byte(body)}); err != nil {
		a.t.Fatal(err)
	}
	return a.passed(before)
}

// passed tells whether the server denied nothing of what was sent since.
func (a *attacker) passed(before error) bool {
	a.t.Helper()
	if err := a.nc.FlushTimeout(testTimeout); err != nil {
		a.t.Fatalf("%s: %v", a.role, err)
	}
	// The server's word comes before the answer to the flush, and is a new error each time.
	if err := a.nc.LastError(); err != before && err != nil && errors.Is(err, nats.ErrPermissionViolation) { //nolint:errorlint // the same value, not the same kind
		a.noteOutcome(denied, err.Error())
		return false
	}
	a.noteOutcome(nothing, "")
	return true
}

// tell publishes and expects no answer.
func (a *attacker) tell(subject, body string, header ...string) {
	a.t.Helper()
	h := nats.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	a.send(subject, "", h, body)
}

// ask publishes and reads the answer, if there is one.
func (a *attacker) ask(subject, body string, header ...string) {
	a.t.Helper()
	h := nats.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	inbox := a.nc.NewInbox()
	sub, err := a.nc.SubscribeSync(inbox)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if !a.send(subject, inbox, h, body) {
		return
	}
	answer, err := sub.NextMsg(answerTimeout)
	if err != nil || answer.Header.Get("Status") != "" {
		return
	}
	if code := answer.Header.Get("Nats-Service-Error"); code != "" { // the gateway's
		a.noteOutcome(refused, code)
		return
	}
	var said struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(answer.Data, &said) == nil && said.Error != nil {
		a.noteOutcome(refused, string(said.Error))
		return
	}
	a.noteOutcome(read, fmt.Sprintf("%.80s", answer.Data))
}

// listen subscribes, and keeps it until the attack is over.
func (a *attacker) listen(subject string) {
	a.t.Helper()
	before := a.nc.LastError()
	sub, err := a.nc.SubscribeSync(subject)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.passed(before) {
		a.subs = append(a.subs, sub)
	}
}

// readListened tells what came to those who listen.
func (a *attacker) readListened() {
	if err := a.nc.FlushTimeout(testTimeout); err != nil { // behind it has come what was sent to us
		a.t.Fatal(err)
	}
	for _, sub := range a.subs {
		if n, _, _ := sub.Pending(); n > 0 {
			a.noteOutcome(read, "heard on "+sub.Subject)
		}
		_ = sub.Unsubscribe()
	}
	a.subs = nil
}
