//go:build proof

// Package compose brings docker-compose.yml up as it is, uses it, scales it and harms
// it. It needs a Docker engine and says so where there is none; what else it needs it
// makes: docker compose from its Go module where that is missing, and images from this
// module and the host, under the names in the compose file, where none can be pulled.
//
//	go test -tags proof ./tests/proof/compose -v                       # four minutes; the first time some more
//	go test -tags proof ./tests/proof/compose -v -long                 # and each fault there is, as chaos on containers
package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// between is the time from the end of a fault to the next one.
const between = 3 * time.Second

// TestVersions: the server of the compose file is the one that is tested everywhere else.
func TestVersions(t *testing.T) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/nats-io/nats-server/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("nats:%s-alpine", strings.TrimPrefix(strings.TrimSpace(string(version)), "v")); natsImage != want {
		t.Errorf("the test runs %s, go.mod has %s", natsImage, want)
	}
	text, err := os.ReadFile(composeFile)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "image: "+natsImage+" ") {
		t.Errorf("the compose file does not run %s", natsImage)
	}
	_ = imageLines(t)
}

// TestCompose is what a user does: up, a handoff, more workers; and a server dies.
func TestCompose(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	s := newStack(t, ctx, "")
	s.up()
	s.usable()
	s.confined()
	s.checked()

	b, acks := s.broker("judge"), &testworld.Acks{}
	stop := s.sources(2, "reviewer", acks)
	s.pause(2 * time.Second)
	killed := s.leader()
	began := time.Now()
	s.docker("kill", killed)
	s.waitWorking(b, acks) // with one server gone
	dead := testworld.Fault{Name: "the ledger's leader killed, one of three servers left away", From: began, To: time.Now()}
	began = time.Now()
	s.up("--scale", "reviewer=5") // starts the killed one, too
	scaled := testworld.Fault{Name: "it started again, and from 1 to 5 workers", From: began, To: time.Now()}
	if n := len(s.containers("reviewer")); n != 5 {
		t.Errorf("%d workers, want 5", n)
	}
	s.shared(b, acks, 5)
	stop()
	heads := (&testworld.Judge{Broker: b, Acks: acks, Faults: []testworld.Fault{dead, scaled}, Between: between, Indexed: indexed(b)}).Judge(ctx, t)
	for ticket, head := range heads {
		if head.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%s ended as %s", ticket, head.Outcome)
		}
	}
	s.kept(acks.Tickets()[0])
}

// kept checks that a handoff outlasts its containers.
func (s *stack) kept(ticket string) {
	s.Helper()
	if _, err := s.try(s.ctx, 3*time.Minute, "down"); err != nil {
		s.Fatal(err)
	}
	s.up()
	if out := s.handoff("result", ticket); !strings.Contains(out, "words") {
		s.Errorf("after down and up the result of %s is %s", ticket, out)
	}
}

// usable hands one over as the documentation says, and asks about it.
func (s *stack) usable() {
	s.Helper()
	out := s.handoff("submit", "--to", "reviewer", "--reason", "a try", "--task", "Count these four words", "--wait", "-o", "json")
	if !strings.Contains(out, `"success"`) {
		s.Errorf("submit --wait printed %s", out)
	}
	if out := s.handoff("list", "--agent", "reviewer", "-o", "jsonl"); strings.Count(out, "\n") != 0 || !strings.Contains(out, `"reviewer"`) {
		s.Errorf("list printed %s", out)
	}
	s.overHTTP()
	s.handoff("doctor") // exit code 0: nothing is amiss with what the compose file brings up
}

// overHTTP makes a token as the documentation says, and lists handoffs with it.
func (s *stack) overHTTP() {
	s.Helper()
	token := strings.TrimSpace(s.handoff("token", "new", "--tokens", "/var/lib/handoff/tokens.json", "--name", "person", "--role", "reader"))
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.http+"/v1/handoffs?agent=reviewer", nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"reviewer"`) {
		s.Errorf("over HTTP: %s %s (%v)", answer.Status, body, err)
	}
}

// waitWorking returns when a handoff has been submitted and completed from now on.
func (s *stack) waitWorking(b *broker.Broker, acks *testworld.Acks) {
	s.Helper()
	for had := len(acks.Tickets()); ; s.pause(200 * time.Millisecond) {
		if now := acks.Tickets(); len(now) > had {
			if _, err := brokertest.Wait(s.ctx, b, now[len(now)-1], brokertest.Closed); err != nil {
				s.Fatal(err)
			}
			return
		}
		if s.ctx.Err() != nil {
			s.Fatal("nothing is acknowledged with one server gone")
		}
	}
}

// shared returns when so many workers have completed something.
func (s *stack) shared(b *broker.Broker, acks *testworld.Acks, workers int) {
	s.Helper()
	by := map[string]int{}
	for seen := 0; len(by) < workers; {
		tickets := acks.Tickets()
		for ; seen < len(tickets); seen++ {
			if _, err := brokertest.Wait(s.ctx, b, tickets[seen], brokertest.Closed); err != nil {
				s.Fatalf("of %d workers only these have completed anything: %v: %v", workers, by, err)
			}
			result, _, err := b.Result(s.ctx, tickets[seen])
			if err != nil {
				s.Fatal(err)
			}
			var body struct{ By string }
			if err := json.Unmarshal(result.Body, &body); err != nil {
				s.Fatalf("%s: %v in %s", tickets[seen], err, result.Body)
			}
			by[body.By]++
		}
		s.pause(200 * time.Millisecond)
		if s.ctx.Err() != nil {
			s.Fatalf("of %d workers only these have completed anything: %v", workers, by)
		}
	}
	s.Logf("completed by: %v", by)
}
