package broker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// bodies is an engine that keeps everything that is stored in it.
type bodies struct {
	broker.Engine
	blobs [][]byte
}

func (b *bodies) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	b.blobs = append(b.blobs, body)
	return b.Engine.PutBlob(ctx, body)
}

// What agents and people say is stored without secrets, whatever they say it with.
func TestNothingSaidKeepsSecrets(t *testing.T) {
	const secret = "swordfish7"
	says := "the db said password=" + secret
	value, err := json.Marshal(says)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]json.RawMessage{"db_password": json.RawMessage(`"` + secret + `"`)}
	result := protocol.Result{Body: value, Summary: says, Notes: says, Variables: named}
	large := result
	large.Body = json.RawMessage(`"` + strings.Repeat("x ", protocol.InlineBytesMax) + says + `"`)
	ctx := t.Context()
	for name, story := range map[string]func(*broker.Broker, *broker.Claim) error{
		"completed":       func(_ *broker.Broker, c *broker.Claim) error { return c.Complete(ctx, result) },
		"completed large": func(_ *broker.Broker, c *broker.Claim) error { return c.Complete(ctx, large) },
		"failed": func(_ *broker.Broker, c *broker.Claim) error {
			return c.Fail(ctx, broker.Failure{Code: "exit_1", Message: says, Retryable: true})
		},
		"released":          func(_ *broker.Broker, c *broker.Claim) error { return c.Release(ctx, says, nil) },
		"escalated":         func(_ *broker.Broker, c *broker.Claim) error { return c.Escalate(ctx, says, says) },
		"rolled back":       func(_ *broker.Broker, c *broker.Claim) error { return c.RollBack(ctx, says, &result) },
		"rolled back large": func(_ *broker.Broker, c *broker.Claim) error { return c.RollBack(ctx, says, &large) },
		"refused": func(_ *broker.Broker, c *broker.Claim) error {
			return c.Acknowledge(ctx, protocol.Ack{Status: protocol.AckRejected, Reason: says}, false)
		},
		"asked and answered": func(b *broker.Broker, c *broker.Claim) error {
			if err := c.Acknowledge(ctx, protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{says}, NeedsPermission: []string{says}, Reason: says}, false); err != nil {
				return err
			}
			_, err := b.Answer(ctx, c.Ticket, protocol.Answer{By: "human", Question: 1, Text: says, Variables: named, Permit: true})
			return err
		},
		"progressed, cancelled": func(b *broker.Broker, c *broker.Claim) error {
			if err := c.Progress(ctx, protocol.Progress{Message: says, Details: json.RawMessage(`{"password":"` + secret + `"}`)}); err != nil {
				return err
			}
			_, err := b.Cancel(ctx, c.Ticket, "human", says)
			return err
		},
		"rerouted, late": func(b *broker.Broker, c *broker.Claim) error {
			if _, err := b.Reroute(ctx, c.Ticket, protocol.Human, "human", says, time.Time{}); err != nil {
				return err
			}
			if _, err := b.ParkLate(ctx, c.Lease(), result); err != nil {
				return err
			}
			holder := protocol.Holder{ID: uuid.NewString(), Agent: protocol.Human, LeaseMS: protocol.LeaseDefaultMS, Slots: 1}
			if err := b.Beat(ctx, holder); err != nil {
				return err
			}
			_, err := b.Take(ctx, c.Ticket, holder, says)
			return err
		},
		"handed off": func(_ *broker.Broker, c *broker.Claim) error {
			next, err := json.Marshal(map[string]any{"next_task": says, "db_password": secret})
			if err != nil {
				return err
			}
			return c.Complete(ctx, protocol.Result{Body: value, Command: &protocol.Command{Goto: json.RawMessage(`"human"`), Update: next}})
		},
	} {
		engine := &bodies{Engine: brokertest.NewMemory()}
		b, claim, _ := claimed(t, engine)
		if err := story(b, claim); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		stored := ""
		err := engine.Entries(ctx, nil, func(e broker.Entry) error {
			stored += string(e.Body)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, blob := range engine.blobs {
			stored += string(blob)
		}
		if strings.Contains(stored, secret) || !strings.Contains(stored, redact.Marker) {
			at := max(0, strings.Index(stored, secret))
			t.Errorf("%s: …%s…", name, stored[max(0, at-300):min(len(stored), at+30)])
		}
	}
}
