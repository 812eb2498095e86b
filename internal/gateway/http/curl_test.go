package httpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// sh runs a command of a shell in the directory of the processes, and returns what it prints.
func (p *processes) sh(command string) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", command)
	cmd.Dir, cmd.Env = p.dir, p.environ()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.Fatalf("%s: %v\n%s%s", command, err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (p *processes) environ() []string {
	return append(os.Environ(), "HANDOFF_URL="+p.url, "NATS_URL="+p.nats, "H="+testworld.Handoff(p), "XDG_STATE_HOME="+p.dir)
}

// follower is a curl that follows the events of a handoff into a file.
type follower struct {
	p            *processes
	ticket, file string
	curl         *testworld.Process
}

// follow starts curl behind the events that the file has.
func (f *follower) follow() {
	f.p.Helper()
	last := ""
	if ids := f.ids(); len(ids) > 0 {
		last = fmt.Sprintf("-H 'Last-Event-ID: %s'", ids[len(ids)-1])
	}
	_, _ = fmt.Fprintln(f.open()) // a message that was cut off ends here
	f.curl = testworld.StartIn(f.p, f.p.dir, "curl", f.p.environ(), "sh", "-c",
		fmt.Sprintf("exec curl -sN -H @lead.txt %s $HANDOFF_URL/v1/handoffs/%s/events >>%s", last, f.ticket, f.file))
}

func (f *follower) open() *os.File {
	file, err := os.OpenFile(filepath.Join(f.p.dir, f.file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.p.Fatal(err)
	}
	f.p.Cleanup(func() { _ = file.Close() })
	return file
}

// message matches a whole message, with its id and its data.
var message = regexp.MustCompile(`(?m)^id: (\S+)\nevent: change\ndata: (.*)\n\n`)

// ids are those of the messages that came whole.
func (f *follower) ids() (ids []string) {
	text, _ := os.ReadFile(filepath.Join(f.p.dir, f.file)) // none yet
	for _, m := range message.FindAllStringSubmatch(string(text), -1) {
		ids = append(ids, m[1])
	}
	return ids
}

// await waits until an event of a kind came.
func (f *follower) await(kind protocol.EventType) {
	f.p.Helper()
	f.p.eventually(string(kind), func() bool {
		text, _ := os.ReadFile(filepath.Join(f.p.dir, f.file))
		return slices.ContainsFunc(message.FindAllStringSubmatch(string(text), -1), func(m []string) bool {
			return strings.Contains(m[2], `"`+string(kind)+`"`)
		})
	})
}

// TestCurl is a story with curl alone, and with the worker in shell of docs/how-to/http.md. A worker is
// killed with its claim, another one refuses and names an agent, whose worker completes. The gateway is
// killed in between, and the events are cut twice.
func TestCurl(t *testing.T) {
	t.Parallel()
	for _, needed := range []string{"sh", "curl", "jq"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Fatalf("needs %s: %v", needed, err)
		}
	}
	p := newProcesses(t)
	for name, role := range map[string]Role{"root": RoleAdmin, "lead": RoleAgent, "coder": RoleAgent, "deployer": RoleAgent} {
		if err := os.WriteFile(filepath.Join(p.dir, name+".txt"), []byte("Authorization: Bearer "+p.token(name, role)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, agent := range []string{"coder", "deployer"} {
		p.sh(`curl -sfH @root.txt $HANDOFF_URL/v1/ops/PutAgent --json '{"profile":{"id":"` + agent + `"}}'`)
	}
	submit := `curl -sH @lead.txt $HANDOFF_URL/v1/handoffs -H 'Idempotency-Key: one' -o %s -w '%%{http_code}' --json '{"target":{"agent":"coder"},
		"reason":"the tests pass","task":{"description":"deploy it"},"policy":{"backoff_base_ms":100}}'; jq -r .state.ticket %[1]s`
	first := p.sh(fmt.Sprintf(submit, "first.txt"))
	p.restart()
	again := p.sh(fmt.Sprintf(submit, "again.txt"))
	ticket, found := strings.CutPrefix(first, "202")
	if !found || again != "200"+ticket {
		t.Fatalf("submitted: %s, and again: %s", first, again)
	}
	events := &follower{p: p, ticket: ticket, file: "events.txt"}
	events.follow()
	events.await(protocol.EventSubmitted)

	// The first worker is killed while its program works.
	worker := page(t, "worker.sh")
	p.write("worker.sh", strings.Replace(worker, `"lease_ms": 30000`, `"lease_ms": 5000`, 1))
	p.write("coder.sh", "touch begun; exec sleep 60")
	killed := p.start("coder")
	p.eventually("work", func() bool { _, err := os.Stat(filepath.Join(p.dir, "begun")); return err == nil })
	events.await(protocol.EventAccepted)
	events.curl.Kill()
	killed.Kill()
	p.restart()
	events.follow()

	// The second one refuses, and names the agent of the third.
	p.write("worker.sh", worker)
	p.write("coder.sh", page(t, "coder.sh"))
	p.start("coder")
	events.await(protocol.EventRerouted)
	p.restart() // which cuts the events
	<-events.curl.Ended()
	events.follow()
	p.write("deployer.sh", `echo "deployed: $1"`)
	p.start("deployer")
	select {
	case <-events.curl.Ended():
	case <-time.After(2 * time.Minute):
		t.Fatal("the events do not end")
	}
	if got := p.sh("curl -sfH @lead.txt $HANDOFF_URL/v1/handoffs/" + ticket + "/result | jq -r .result.body"); got != "deployed: deploy it" {
		t.Errorf("the result is %q", got)
	}

	var history []struct {
		Seq    uint64
		Events []struct{ Type, Agent string }
	}
	if err := json.Unmarshal([]byte(p.sh("$H history -o json "+ticket)), &history); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, change := range history {
		want = append(want, fmt.Sprintf("%s:%d", ticket, change.Seq))
	}
	if got := events.ids(); !slices.Equal(got, want) {
		t.Errorf("the events are\n%v, and the changes\n%v", got, want)
	}
	if audit := p.sh("$H audit verify"); !strings.Contains(audit, "all is well") {
		t.Error(audit)
	}
	t.Log(p.sh("$H history " + ticket))
}

// start starts the worker of an agent.
func (p *processes) start(agent string) *testworld.Process {
	p.Helper()
	return testworld.StartIn(p, p.dir, "worker of "+agent, p.environ(), "sh", "worker.sh", agent)
}

func (p *processes) write(name, text string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// page returns a file that docs/how-to/http.md has.
func page(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/how-to/http.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "```sh\n# "+name+"\n")
	file, _, ended := strings.Cut(after, "```\n")
	if !found || !ended {
		t.Fatalf("the page has no %s", name)
	}
	return file
}
