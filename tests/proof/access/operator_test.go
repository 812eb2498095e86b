//go:build proof

package access

import (
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// TestOperatorMode: the accounts of accounts.conf work where they are signed and not in
// a file, too: a reader reads, and an agent that is not trusted submits through a gateway.
func TestOperatorMode(t *testing.T) {
	s := newSigner(t)
	engine := publicKey(t, s.account)
	service := func(subject string) *jwt.Export {
		return &jwt.Export{Name: subject, Subject: jwt.Subject(subject), Type: jwt.Service}
	}
	asked := []string{"$JS.API.INFO"}
	for _, stream := range streams {
		asked = append(asked, "$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream)
	}
	s.exports = jwt.Exports{service("handoff.v1.*.>"), {Name: "feed", Subject: "handoff.feed.*", Type: jwt.Stream}}
	var readers, reviewer jwt.Imports
	for _, subject := range asked {
		s.exports = append(s.exports, service(subject))
		readers = append(readers, &jwt.Import{Name: subject, Account: engine, Subject: jwt.Subject(subject), Type: jwt.Service})
	}
	readers = append(readers, &jwt.Import{Name: "feed", Account: engine, Subject: "handoff.feed.*", Type: jwt.Stream})
	reviewer = jwt.Imports{{Name: "gateway", Account: engine, Subject: "handoff.v1.reviewer.>", Type: jwt.Service}}
	outside := map[string]nkeys.KeyPair{"reader": s.importing(readers), "reviewer": s.importing(reviewer)}

	h := newServer(t, s.config())
	inside := s.creds(h.dir+"/inside.creds", s.account, nil)
	as := func(creds string, more ...string) []string {
		return append([]string{"NATS_URL=" + h.URL, "NATS_CREDS=" + creds}, more...)
	}
	must := func(env []string, args ...string) string {
		t.Helper()
		got := h.runAs(env, args...)
		if got.code != exitDone {
			t.Fatalf("handoff %v ended with %d: %s", args, got.code, got.errout)
		}
		return got.out
	}
	must(as(inside), "topology", "ensure")
	must(as(inside), "agents", "put", "coder")
	h.awaitOutput(h.startWith("gateway", as(inside), "gateway"), "ready")
	through := as(s.creds(h.dir+"/reviewer.creds", outside["reviewer"], func(u *jwt.UserClaims) {
		u.Pub.Allow.Add("handoff.v1.reviewer.>")
		u.Sub.Allow.Add("_INBOX_reviewer.>")
	}), "HANDOFF_AGENT=reviewer", "HANDOFF_GATEWAY=1")
	ticket := must(through, "submit", "--to", "coder", "--reason", "ready", "--task", "fix it")
	must(through, "status", ticket)
	if from := field[string](t, must(as(s.creds(h.dir+"/reader.creds", outside["reader"], nil)), "status", ticket, "-o", "json"), "source"); from != "reviewer" {
		t.Errorf("it is from %s", from)
	}
	if got := h.runAs(as(s.creds(h.dir+"/other.creds", outside["reviewer"], nil)), "status", ticket); got.code != exitUnreachable {
		t.Errorf("an account without a part in the engine ended with %d: %s", got.code, got.errout)
	}
}
