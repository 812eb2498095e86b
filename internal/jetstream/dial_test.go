package jetstream

import (
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
)

func TestDialSaysWhereItLookedAndKeepsSecrets(t *testing.T) {
	_, err := Dial(t.Context(), DialConfig{URL: "nats://me:hunter2@127.0.0.1:1,127.0.0.1:2"})
	if !errors.Is(err, broker.ErrUnreachable) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"nats://127.0.0.1:1,nats://127.0.0.1:2", "handoff dev"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in %q", err)
	}
}
