package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// bodies are bodies by their digests.
type bodies map[string][]byte

func (b bodies) put(all [][]byte) (added int) {
	for _, body := range all {
		if _, there := b[protocol.Digest(body)]; !there {
			added++
		}
		b[protocol.Digest(body)] = body
	}
	return added
}

func (b bodies) read(of protocol.BlobRef) ([]byte, error) {
	body, there := b[of.Digest]
	if !there || int64(len(body)) != of.Size {
		return nil, errors.New("not there")
	}
	return body, nil
}

func talkOf(messages int) protocol.Package {
	pkg := protocol.Package{Task: protocol.Task{Description: "mend it"}}
	for i := range messages { // spaces and escapes stay as they are
		pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, fmt.Appendf(nil, `{"role": "user",  "content":"line \u00e9 %d"}`, i))
	}
	pkg.Context.Variables = map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}
	pkg.Context.Summary = "so far"
	pkg.Context.HistoryTransfer.Mode = protocol.TransferReference
	return pkg
}

// A context comes back byte for byte, the package is small, and the same context is the same URL.
func TestStoreContext(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 200, 1000} {
		pkg, again, given := talkOf(n), talkOf(n), talkOf(n)
		if !pkg.GoesByReference() {
			t.Fatal("it does not go by reference")
		}
		store := bodies{}
		made, err := pkg.StoreContext()
		if err != nil {
			t.Fatal(err)
		}
		if store.put(made); len(made) != (n+63)/64+1 {
			t.Errorf("%d messages are %d bodies", n, len(made))
		}
		if pkg.GoesByReference() || len(pkg.Context.ConversationHistory) > 0 || len(pkg.Context.KeyPoints) == 0 || string(pkg.Context.Variables["branch"]) != `"main"` {
			t.Errorf("%d: what goes on is %+v", n, pkg.Context)
		}
		if body, err := protocol.EncodePackage(pkg); err != nil || len(body) > 4096 {
			t.Errorf("%d: the package has %d bytes, %v", n, len(body), err)
		}
		if _, err := again.StoreContext(); err != nil || again.Context.ContextURL != pkg.Context.ContextURL {
			t.Errorf("%d: %s and %s, %v", n, again.Context.ContextURL, pkg.Context.ContextURL, err)
		}
		ref, ours := protocol.ParseContextURL(pkg.Context.ContextURL)
		if !ours || protocol.ContextURL(ref) != pkg.Context.ContextURL {
			t.Fatalf("%s is %+v, %v", pkg.Context.ContextURL, ref, ours)
		}
		whole, err := protocol.ReadContext(ref, store.read)
		if err != nil {
			t.Fatal(err)
		}
		given.Context.HistoryTransfer = protocol.HistoryTransfer{}
		want, err := protocol.Marshal(given.Context)
		got, err2 := protocol.Marshal(whole)
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%d: it comes back as %.200s, and was %.200s", n, got, want)
		}
		for digest := range store { // any piece that is gone is an error, and no shorter conversation
			kept := store[digest]
			delete(store, digest)
			if _, err := protocol.ReadContext(ref, store.read); err == nil {
				t.Errorf("%d: without %s there is a context", n, digest)
			}
			store[digest] = kept
		}
	}
}

// A conversation that grows from hop to hop is stored once: each hop adds its last piece and the
// list of pieces.
func TestStoredContextGrows(t *testing.T) {
	store, added, whole := bodies{}, 0, 0
	for hop := 1; hop <= 20; hop++ {
		pkg := talkOf(64 * hop)
		made, err := pkg.StoreContext()
		if err != nil {
			t.Fatal(err)
		}
		added += store.put(made)
		whole += len(made)
	}
	if added != 40 || whole != 230 {
		t.Errorf("20 hops store %d bodies of %d, and 40 of 230 are new", added, whole)
	}
}

// What lies under a URL is a context, or an error: a package, a result and a piece of a conversation
// are none, also for an agent that knows their digests.
func TestReadContextOfOtherBodies(t *testing.T) {
	pkg := talkOf(70)
	made, err := pkg.StoreContext()
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"a package": `{"context":{"summary":"secret"}}`, "a result": `{"body":"secret"}`, "nothing": ``, "a piece": string(made[0]),
		"no JSON": "context/1\n{", "another version": "context/2\n{}", "no context": "context/1\n{\"context\":[]}",
		"a piece that is none": "context/1\n" + `{"context":{},"pieces":[{"digest":"` + protocol.Digest([]byte(`{"body":"secret"}`)) + `","size":17}]}`,
		"pieces without end":   "context/1\n" + `{"context":{},"pieces":[{"digest":"x","size":70000000}]}`,
		"a size below zero":    "context/1\n" + `{"context":{},"pieces":[{"digest":"x","size":-1}]}`,
	} {
		store := bodies{}
		store.put([][]byte{[]byte(body), []byte(`{"body":"secret"}`)})
		got, err := protocol.ReadContext(protocol.BlobRef{Digest: protocol.Digest([]byte(body)), Size: int64(len(body))}, store.read)
		if !errors.Is(err, &protocol.Error{Code: protocol.CodeUnreadable}) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	hex := strings.Repeat("ab", 32)
	for _, url := range []string{"", "context://42", "https://x/y", "context://sha256:" + hex, "context://sha256:" + hex + "/-1", "context://sha256:" + hex + "/01",
		"context://sha256:" + strings.ToUpper(hex) + "/1", "context://sha256:" + hex[2:] + "/1", "context://sha256:" + hex + "/1/2", "context://sha256:" + hex + "/67108865", "context://md5:" + hex + "/1"} {
		if _, ours := protocol.ParseContextURL(url); ours {
			t.Errorf("%q is a URL of ours", url)
		}
	}
}
