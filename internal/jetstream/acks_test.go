package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// ackedBy starts a server and returns a connection whose messages to "s" are answered by answer.
func ackedBy(t *testing.T, answer func(m *nats.Msg)) *nats.Conn {
	t.Helper()
	node, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	node.Start()
	t.Cleanup(node.Shutdown)
	nc, err := nats.Connect("", nats.InProcessServer(node))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if _, err := nc.Subscribe("s", answer); err != nil {
		t.Fatal(err)
	}
	return nc
}

// TestEachPublishHasItsOwnReply publishes from many goroutines; each message is answered twice.
func TestEachPublishHasItsOwnReply(t *testing.T) {
	nc := ackedBy(t, func(m *nats.Msg) { _, _ = m.Respond(m.Data), m.Respond([]byte("again")) })
	a := newAcks(nc)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for k := range 200 {
				text := fmt.Sprint(i, k)
				reply, err := a.publish(t.Context(), &nats.Msg{Subject: "s", Data: []byte(text)}, time.Minute)
				if err != nil || string(reply.Data) != text {
					t.Errorf("%s was answered %v, %v", text, reply, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(a.waiting) > 0 {
		t.Errorf("%d waits are left", len(a.waiting))
	}
}

// TestEndsOfAWait has each way in which the wait for a reply ends without one.
func TestEndsOfAWait(t *testing.T) {
	silent := make(chan struct{}, 8)
	nc := ackedBy(t, func(*nats.Msg) { silent <- struct{}{} })
	a := newAcks(nc)
	publish := func(ctx context.Context, subject string, timeout time.Duration) error {
		_, err := a.publish(ctx, &nats.Msg{Subject: subject}, timeout)
		return err
	}
	if err := publish(t.Context(), "nothing.listens", time.Minute); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("without a responder: %v", err)
	}
	if err := publish(t.Context(), "s", time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the timeout: %v", err)
	}
	<-silent
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-silent; cancel() }()
	if err := publish(ctx, "s", time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context: %v", err)
	}
	go func() { <-silent; a.disconnected() }()
	if err := publish(t.Context(), "s", time.Minute); !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("after the loss of the connection: %v", err)
	}
	go func() {
		<-silent
		a.close() // the subscription stays for the wait
		if !a.sub.IsValid() {
			t.Error("the subscription ended while a reply was waited for")
		}
		nc.Close()
		a.disconnected()
	}()
	if err := publish(t.Context(), "s", time.Minute); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("after the end of the connection: %v", err)
	}
	if a.sub.IsValid() || len(a.waiting) > 0 {
		t.Errorf("the subscription is valid: %v; %d waits are left", a.sub.IsValid(), len(a.waiting))
	}
}

// TestMessageIsUsedAgain: a message that was released has neither headers nor a reply.
func TestMessageIsUsedAgain(t *testing.T) {
	for range 100 {
		m := newMessage("s", []byte("x"))
		if len(m.Header) > 0 || m.Reply != "" || m.n != 0 {
			t.Fatalf("a new message is %+v", m)
		}
		m.set("a", "1")
		m.set("b", "2")
		if m.Header.Get("a")+m.Header.Get("b") != "12" {
			t.Fatalf("headers are %v", m.Header)
		}
		m.Reply = "r"
		m.release()
	}
}
