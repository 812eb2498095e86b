//go:build proof

package process

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

const operations = "../../../docs/operations/"

// manifest is what is looked at of a document of kubernetes.yaml.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image string
					Args  []string
				}
			}
		}
		Triggers []struct {
			Type     string
			Metadata map[string]string
		}
	}
}

func manifests(t *testing.T) (all []manifest) {
	t.Helper()
	file, err := os.Open(operations + "kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for decoder := yaml.NewDecoder(file); ; {
		var m manifest
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// TestKubernetesCommands: what the example runs are commands that there are, with
// flags that they have.
func TestKubernetesCommands(t *testing.T) {
	bin := testworld.Handoff(t)
	commands := 0
	for _, m := range manifests(t) {
		if m.APIVersion == "" || m.Kind == "" || m.Metadata.Name == "" {
			t.Errorf("a document without a version, a kind or a name: %+v", m)
		}
		for _, c := range m.Spec.Template.Spec.Containers {
			commands++
			args := c.Args
			if dash := slices.Index(args, "--"); dash >= 0 {
				args = args[:dash]
			}
			if out, err := exec.Command(bin, append(slices.Clone(args), "--help")...).CombinedOutput(); err != nil {
				t.Errorf("handoff %s: %v: %s", strings.Join(args, " "), err, out)
			}
		}
	}
	if commands != 3 {
		t.Errorf("%d commands, want 3", commands)
	}
}

// TestUnits has systemd read the units.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("skipped: systemd-analyze is not here")
	}
	bin := testworld.Handoff(t)
	units, err := filepath.Glob(operations + "systemd/*.service")
	if err != nil || len(units) != 4 {
		t.Fatalf("units %v, %v", units, err)
	}
	dir := t.TempDir()
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.Replace(filepath.Base(unit), "@.", "@reviewer.", 1)
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/handoff", bin)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
		if err != nil || strings.Contains(string(out), name) {
			t.Errorf("%s: %v: %s", unit, err, out)
		}
	}
}

// TestLag holds what the autoscaler of the example reads, from the servers' own /jsz,
// against what stands in the queue.
func TestLag(t *testing.T) {
	if testworld.Race {
		t.Skip("three servers with the race detector's tests beside them: run it without -race")
	}
	const standing, taken = 7, 3
	cluster := testworld.StartCluster(t, 3, 0)
	b := dial(t, cluster.URL())
	putAgent(t, b, protocol.Profile{ID: "reviewer"})
	if err := b.EnsureQueue(t.Context(), "reviewer"); err != nil {
		t.Fatal(err)
	}
	for range standing {
		in, err := b.Prepare(t.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: "reviewer"}, Reason: "lag", Task: protocol.Task{Description: "stand"}})
		if err == nil {
			_, err = b.Submit(t.Context(), in)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	for end := time.Now().Add(testTimeout); got < taken && time.Now().Before(end); {
		offers, err := b.Pull(t.Context(), "reviewer", taken-got, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		got += len(offers)
	}
	depth, err := b.QueueDepth(t.Context(), "reviewer")
	for end := time.Now().Add(testTimeout); err == nil && depth < standing && time.Now().Before(end); { // a replica may show the last of them a moment later
		depth, err = b.QueueDepth(t.Context(), "reviewer")
	}
	if err != nil || depth != standing {
		t.Fatalf("%d offers stand, %v; want %d", depth, err, standing)
	}
	lag, given := 0, 0
	for _, m := range manifests(t) {
		for _, trigger := range m.Spec.Triggers {
			if trigger.Type != "nats-jetstream" || trigger.Metadata["stream"] != jetstream.WorkStream || trigger.Metadata["account"] != "$G" {
				t.Errorf("trigger %+v", trigger)
			}
			pending, delivered := jsz(t, cluster, trigger.Metadata["stream"], trigger.Metadata["consumer"])
			lag, given = lag+pending+delivered, given+delivered
		}
	}
	if lag != standing || given != taken {
		t.Errorf("the servers report %d, %d of them delivered; want %d and %d", lag, given, standing, taken)
	}
}

// jsz reads a consumer as the server tells it that leads it.
func jsz(t *testing.T, cluster *testworld.Cluster, stream, consumer string) (pending, delivered int) {
	t.Helper()
	type detail struct {
		Name       string
		Pending    int `json:"num_pending"`
		AckPending int `json:"num_ack_pending"`
		Cluster    struct{ Leader string }
	}
	for _, node := range cluster.Nodes {
		answer, err := http.Get(node.Monitor + "/jsz?acc=$G&consumers=true")
		if err != nil {
			t.Fatal(err)
		}
		var told struct {
			Accounts []struct {
				Streams []struct {
					Name      string
					Consumers []detail `json:"consumer_detail"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		err = json.NewDecoder(answer.Body).Decode(&told)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, account := range told.Accounts {
			for _, s := range account.Streams {
				for _, c := range s.Consumers {
					if s.Name == stream && c.Name == consumer && c.Cluster.Leader == node.Name {
						return c.Pending, c.AckPending
					}
				}
			}
		}
	}
	t.Errorf("no server leads the consumer %s of %s", consumer, stream)
	return 0, 0
}
