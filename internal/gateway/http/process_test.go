package httpgateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// processes are an engine and a gateway, each the program itself in a process of its own.
type processes struct {
	world
	dir, address, nats string
	gateway            *testworld.Process
}

func newProcesses(t testing.TB) *processes {
	t.Helper()
	dir, handoff, ports := t.TempDir(), testworld.Handoff(t), testworld.Ports(t, 2)
	p := &processes{dir: dir, nats: fmt.Sprintf("nats://127.0.0.1:%d", ports[0]), address: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	p.world = world{TB: t, url: "http://" + p.address, file: filepath.Join(dir, "callers.json"), tokens: map[string]string{}}
	testworld.StartIn(t, dir, "engine", nil, handoff, "dev", "--data", dir, "--port", strconv.Itoa(ports[0]), "--no-http", "--fsync", "interval").
		AwaitOutput(t.Context(), "ready")
	p.gateway = testworld.StartIn(t, dir, "gateway", []string{"NATS_URL=" + p.nats}, handoff, "serve", "--tokens", p.file, "--http", p.address)
	p.gateway.AwaitOutput(t.Context(), "ready")
	return p
}

// restart ends the gateway with SIGKILL, starts another one, and waits until that answers.
func (p *processes) restart() {
	p.Helper()
	p.gateway.Kill()
	p.gateway.Restart()
	p.eventually("gateway", func() bool {
		answer, err := http.Get(p.url + "/healthz")
		if err == nil {
			_ = answer.Body.Close()
		}
		return err == nil
	})
}

// open sends a request on a connection of its own, and returns the connection once the head of the
// answer was read, with the status.
func (p *processes) open(token, path string) (net.Conn, int) {
	p.Helper()
	conn, err := net.Dial("tcp", p.address)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, token)
	}
	if err != nil {
		p.Fatal(err)
	}
	head, err := bufio.NewReaderSize(conn, 256).ReadString('\n')
	if err != nil {
		p.Fatal(err)
	}
	fields := strings.Fields(head)
	if len(fields) < 2 {
		p.Fatalf("the answer begins with %q", head)
	}
	status, _ := strconv.Atoi(fields[1])
	return conn, status
}

// memory returns the memory of the gateway, in bytes.
func (p *processes) memory() (bytes int64) {
	p.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.gateway.PID()))
	if err != nil {
		p.Skipf("needs /proc: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscanf(strings.TrimSpace(rest), "%d", &bytes); err != nil {
		p.Fatal(err)
	}
	return bytes << 10
}

// processorTime returns the processor time that the gateway has used.
func (p *processes) processorTime() time.Duration {
	p.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.gateway.PID()))
	if err != nil {
		p.Skipf("needs /proc: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest) // without pid and name: utime and stime are the fields 14 and 15
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / 100
}

// TestFullOfStreams fills all places of a gateway with idle streams. Those beyond them are refused, of a
// caller and of all callers; other requests are answered, and the memory of a stream is bounded.
func TestFullOfStreams(t *testing.T) {
	const files, kept = waitsMax + 500, 160 << 10 // of each process, and bytes of a stream
	if limit := testworld.Files(t); limit < files {
		t.Skipf("needs %d open files for %d streams, and may open %d: raise ulimit -n", files, waitsMax, limit)
	}
	p := newProcesses(t)
	p.send(p.token("root", RoleAdmin), "POST", "/v1/ops/PutAgent", strings.NewReader(`{"profile":{"id":"coder"}}`))
	ticket := p.submit("one")
	path := "/v1/handoffs/" + ticket + "/events"
	before := p.memory()
	var streams []net.Conn
	for i := range waitsMax {
		name := fmt.Sprint("watcher-", i/waitsEach)
		conn, status := p.open(p.token(name, RoleReader), path)
		if status != http.StatusOK {
			t.Fatalf("stream %d of %d is refused: %d", i, waitsMax, status)
		}
		streams = append(streams, conn)
		if i != waitsEach-1 {
			continue
		}
		if p := p.get(name, path).problem(t); p.Code != protocol.CodeBusy {
			t.Errorf("a stream beyond those of a caller: %+v", p)
		}
	}
	each := (p.memory() - before) / waitsMax
	t.Logf("%d streams, %d KiB each", waitsMax, each>>10)
	if each > kept && !testworld.Race {
		t.Errorf("a stream takes %d bytes, and at most %d are meant", each, kept)
	}
	for _, beyond := range []string{path, "/v1/handoffs/" + ticket + "?wait_ms=1000", "/v1/events"} {
		a := p.get("lead", beyond)
		if p := a.problem(t); p.Code != protocol.CodeBusy || p.Status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
			t.Errorf("%s beyond all places: %+v", beyond, p)
		}
	}
	want[view](t, p.get("lead", "/v1/handoffs/"+ticket), http.StatusOK)
	p.submit("two") // the first may have escalated since
	p.eventually("offer", func() bool {
		return p.post("coder", "/v1/agents/coder/claims", `{"lease_ms":60000,"accept":true}`).status == http.StatusOK
	})
	for _, conn := range streams {
		_ = conn.Close()
	}
	p.eventually("place", func() bool {
		conn, status := p.open(p.token("lead", RoleAgent), path)
		_ = conn.Close()
		return status == http.StatusOK
	})
}

// BenchmarkIdleClients measures the processor time of a gateway with 1,000 waiting clients, in percent of
// a core; without clients, too. The clients wait for a handoff of their own, or as workers for work.
func BenchmarkIdleClients(b *testing.B) {
	for _, kind := range []struct {
		name, method, path, body string
		clients                  int
	}{
		{name: "none"},
		{"waits", "GET", "/v1/handoffs/{ticket}?wait_ms=20000", "", 1000},
		{"streams", "GET", "/v1/handoffs/{ticket}/events", "", 1000},
		{"claims", "POST", "/v1/agents/idler/claims", `{"wait_ms":20000,"lease_ms":60000}`, 1000},
	} {
		b.Run(kind.name, func(b *testing.B) {
			p := newProcesses(b)
			for _, agent := range []string{"coder", "idler"} {
				p.send(p.token("root", RoleAdmin), "POST", "/v1/ops/PutAgent", strings.NewReader(`{"profile":{"id":"`+agent+`"}}`))
			}
			p.token("idler", RoleAgent)
			transport := &http.Transport{MaxIdleConnsPerHost: max(1, kind.clients)}
			defer transport.CloseIdleConnections()
			send := func(token, method, path, body string) (answer, error) {
				r, _ := http.NewRequestWithContext(b.Context(), method, p.url+path, strings.NewReader(body))
				r.Header = http.Header{"Authorization": {"Bearer " + p.tokens[token]}, "Content-Type": {"application/json"}}
				return doWith(transport, r)
			}
			callers := []string{"lead", "coder"}
			if kind.name == "claims" {
				callers = []string{"root", "idler"}
			}
			for _, caller := range callers {
				p.token(caller, RoleAgent)
			}
			patient := strings.Replace(pkg, "{", `{"policy":{"ack_timeout_ms":3600000},`, 1)
			for i := range kind.clients {
				path := kind.path
				if strings.Contains(path, "{ticket}") {
					a, err := send("lead", "POST", "/v1/handoffs", patient)
					if err != nil {
						b.Fatal(err)
					}
					path = strings.Replace(path, "{ticket}", want[view](b, a, http.StatusAccepted).State.Ticket, 1)
				}
				go func() { // ends with the context
					for b.Context().Err() == nil {
						_, _ = send(callers[i%2], kind.method, path, kind.body)
					}
				}()
				if kind.name == "claims" {
					testworld.Pause(b.Context(), 10*time.Millisecond)
				}
			}
			testworld.Pause(b.Context(), 20*time.Second) // the first waits have ended
			for b.Loop() {
				const span = time.Minute
				before := p.processorTime()
				testworld.Pause(b.Context(), span)
				b.ReportMetric(100*float64(p.processorTime()-before)/float64(span), "%core")
				b.ReportMetric(float64(p.memory())/(1<<20), "MiB")
			}
		})
	}
}
