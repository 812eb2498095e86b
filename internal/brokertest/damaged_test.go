package brokertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// TestDamagedBodies checks that a damaged body is detected, hurts no other body, and is replaced
// when the body is put again.
func TestDamagedBodies(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), handoffjs.Topology{})
	ctx, js := t.Context(), jsAt(t, n.ClientURL())
	other, err := dial(t, n.ClientURL()).PutBlob(ctx, []byte("of another handoff"))
	if err != nil {
		t.Fatal(err)
	}
	metaOf := func(ref handoffjs.DamagedBody) string {
		return "$O.HANDOFF_BLOBS.M." + base64.URLEncoding.EncodeToString([]byte(ref.Ref.Digest))
	}
	put := func(subject string, body []byte) {
		t.Helper()
		msg := nats.NewMsg(subject)
		msg.Data = body
		msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		if _, err := js.PublishMsg(ctx, msg); err != nil {
			t.Fatal(err)
		}
	}
	meta := func(change func(map[string]any)) func(string, map[string]any) {
		return func(subject string, object map[string]any) {
			change(object)
			body, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			put(subject, body)
		}
	}
	set := func(key string, value any) func(string, map[string]any) {
		return meta(func(object map[string]any) { object[key] = value })
	}
	text := func(body string) func(string, map[string]any) {
		return func(subject string, _ map[string]any) { put(subject, []byte(body)) }
	}
	chunks := func(body []byte) func(string, map[string]any) {
		return func(_ string, object map[string]any) { put("$O.HANDOFF_BLOBS.C."+object["nuid"].(string), body) }
	}
	for name, damage := range map[string]func(string, map[string]any){
		"no JSON": text("x"), "empty": text(""), "another type": text("[]"), "null": text("null"),
		"all chunks are its own": set("nuid", ">"), "no chunks": set("nuid", ""), "another's chunks": set("nuid", "a.b"), "chunks of a type": set("nuid", 7),
		"too many chunks": set("chunks", 1_000_000), "none of its chunks": set("chunks", 0), "less than none": set("chunks", -1),
		"other bytes": chunks([]byte("other bytes")), "an empty chunk": chunks(nil), "more bytes": chunks(bytes.Repeat([]byte("x"), 500_000)),
	} {
		t.Run(name, func(t *testing.T) {
			body := bytes.Repeat([]byte(name+" "), 20_000)
			ref, err := dial(t, n.ClientURL()).PutBlob(ctx, body)
			if err != nil {
				t.Fatal(err)
			}
			subject := metaOf(handoffjs.DamagedBody{Ref: ref})
			stream, err := js.Stream(ctx, "OBJ_HANDOFF_BLOBS")
			if err != nil {
				t.Fatal(err)
			}
			stored, err := stream.GetLastMsgForSubject(ctx, subject)
			if err != nil {
				t.Fatal(err)
			}
			var object map[string]any
			if err := json.Unmarshal(stored.Data, &object); err != nil {
				t.Fatal(err)
			}
			damage(subject, object)
			e := dial(t, n.ClientURL())
			_, err = e.Blob(ctx, ref)
			var damaged *handoffjs.DamagedBody
			if !errors.As(err, &damaged) || !errors.Is(err, broker.ErrNotFound) || errors.Is(err, broker.ErrUnreachable) {
				t.Errorf("a damaged body is read as %v", err)
			}
			if _, err := e.PutBlob(ctx, body); err != nil {
				t.Fatalf("put again: %v", err)
			}
			if got, err := e.Blob(ctx, ref); err != nil || !bytes.Equal(got, body) {
				t.Errorf("after it was put again: %v", err)
			}
			if _, err := e.Blob(ctx, other); err != nil {
				t.Errorf("another body: %v", err)
			}
		})
	}
}
