package httpgateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
)

// TestClientThatCloses: a client that closes its connection once it has read its claim keeps the claim.
func TestClientThatCloses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	token := w.token("coder", RoleAgent)
	for i := range 20 {
		w.submit(fmt.Sprint("task-", i))
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"wait_ms":20000,"lease_ms":30000,"accept":true}`
		fmt.Fprintf(conn, "POST /v1/agents/coder/claims HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", token, len(body), body)
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		var held api.Held
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &held)
		}
		if conn.Close(); err != nil {
			t.Fatalf("%v: %d %s", err, r.StatusCode, text)
		}
		done := w.send(token, "POST", "/v1/lease/complete", strings.NewReader(`{"body":"done"}`), "Handoff-Lease: "+held.Lease)
		if done.status != http.StatusOK {
			t.Fatalf("%d: %d %s", i, done.status, done.body)
		}
	}
}
