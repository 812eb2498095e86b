package httpgateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// TestSignal: a body is the payload of a signal, the key of a request its id, and a signal is stored
// before the answer.
func TestSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.register("reviewer")
	boss := w.token("boss", RoleAdmin)
	w.token("shop", RoleSubmitter)
	rule := `{"name":"order","package":{"target":{"agent":"reviewer"},"reason":"r","task":{"description":{"$":"/text"}}}}`
	want[api.RuleStatus](t, w.send(boss, "POST", "/v1/ops/PutRule", strings.NewReader(rule)), http.StatusOK)
	for n, body := range []string{`{"text":"look"}`, `{"text":"look"}`, ""} {
		id := fmt.Sprint(n / 2)
		if sent := want[api.SentSignal](t, w.post("shop", "/v1/signals/order", body, "Idempotency-Key: "+id), http.StatusOK); sent.ID != id {
			t.Errorf("sent as %q, want %q", sent.ID, id)
		}
	}
	if sent := want[api.SentSignal](t, w.post("shop", "/v1/signals/order", `[1]`), http.StatusOK); sent.ID == "" {
		t.Error("a signal has no id")
	}
	for path, body := range map[string]string{
		"/v1/signals/order":   `{"text":`,
		"/v1/signals/no%20no": `{}`,
		"/v1/signals/large":   `"` + strings.Repeat("x", protocol.SignalBytesMax) + `"`,
	} {
		if a := w.post("shop", path, body); a.status < 400 || a.status > 499 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		} else if p := a.problem(t); p.Code == "" || p.Field == "" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	list := want[api.RuleList](t, w.send(boss, "POST", "/v1/ops/Rules", nil), http.StatusOK)
	if len(list.Rules) != 1 || list.Waiting != 3 {
		t.Errorf("%d rules, and %d signals wait, want 1 and 3", len(list.Rules), list.Waiting)
	}
}
