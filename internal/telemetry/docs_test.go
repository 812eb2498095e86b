package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.yaml.in/yaml/v3"

	"github.com/agenthandoff/handoff/internal/brokertest"
)

// metric is the description of one of our metrics.
type metric struct{ name, kind, labels, help string }

func (f metric) row() string {
	return fmt.Sprintf("| `%s` | %s | %s | %s |", f.name, f.kind, f.labels, f.help)
}

// allMetrics are the metrics of a process that runs every part.
func allMetrics(t *testing.T) *Metrics {
	t.Helper()
	b := brokertest.Over(t, brokertest.NewMemory())
	m := NewMetrics()
	m.Engine(b)
	m.Supervision(b.Directory, []string{"start"})
	m.Worker("coder", func() WorkerStats { return WorkerStats{Ended: map[string]int64{"completed": 1}} })
	m.Index(func(context.Context) (IndexStats, error) { return IndexStats{}, nil })
	m.Gateway(func() GatewayStats { return GatewayStats{Answers: map[string]int64{"answered": 1}} })
	m.HTTP(func() HTTPStats { return HTTPStats{Answers: map[string]int64{"answered": 1}} })
	return m
}

var (
	described   = regexp.MustCompile(`fqName: "(handoff_\w+)", help: "([^"]*)", unit: "[^"]*", constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	isHistogram = regexp.MustCompile(`^handoff_(queue|work|whole|timers_late)_seconds$`)
)

// metrics lists the metrics that a process may export, by name.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	descs := make(chan *prometheus.Desc, 1_000)
	allMetrics(t).registry.Describe(descs)
	close(descs)
	all := map[string]metric{}
	for desc := range descs {
		found := described.FindStringSubmatch(desc.String())
		if found == nil {
			continue
		}
		f := metric{name: found[1], kind: "gauge", help: found[2]}
		labels := strings.FieldsFunc(found[4], func(r rune) bool { return r == ',' || r == ' ' })
		if found[3] != "" { // the agent of a worker
			labels = append([]string{"agent"}, labels...)
		}
		f.labels = strings.Join(labels, ", ")
		switch {
		case strings.HasSuffix(f.name, "_total"):
			f.kind = "counter"
		case isHistogram.MatchString(f.name):
			f.kind = "histogram"
		}
		all[f.name] = f
	}
	if len(all) < 40 {
		t.Fatalf("only %d metrics are described", len(all))
	}
	return all
}

// TestMetricNames checks the names against the conventions of Prometheus.
func TestMetricNames(t *testing.T) {
	problems, err := testutil.GatherAndLint(allMetrics(t).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

const operations = "../../docs/operations/"

// TestFiguresAreDocumented checks that metrics.md has a row for each metric and no others.
func TestFiguresAreDocumented(t *testing.T) {
	text, err := os.ReadFile(operations + "metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := metrics(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if row := all[name].row(); !strings.Contains(string(text), row+"\n") {
			t.Errorf("metrics.md has not the row\n%s", row)
		}
	}
	checkNames(t, "metrics.md", string(text), all)
}

var (
	ours   = regexp.MustCompile(`\bhandoff_\w+`)
	suffix = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// checkNames reports names in a text that no process exports.
func checkNames(t *testing.T, where, text string, all map[string]metric) (known int) {
	t.Helper()
	for _, name := range ours.FindAllString(text, -1) {
		base := name
		if isHistogram.MatchString(suffix.ReplaceAllString(name, "")) {
			base = suffix.ReplaceAllString(name, "")
		}
		if _, ok := all[base]; !ok {
			t.Errorf("%s names %s, which no process exports", where, name)
			continue
		}
		known++
	}
	return known
}

// balanced reports whether brackets and quotes of an expression are paired.
func balanced(expr string) bool {
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			return false
		}
	}
	return strings.Count(expr, `"`)%2 == 0
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(operations + "grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string `json:"title"`
		UID    string `json:"uid"`
		Panels []struct {
			ID      int    `json:"id"`
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	all, ids := metrics(t), map[int]bool{}
	for _, panel := range board.Panels {
		if ids[panel.ID] || panel.Title == "" || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %d %q: an id of its own, a title and a query are needed", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			known := checkNames(t, "panel "+panel.Title, target.Expr, all)
			if known == 0 && !strings.Contains(target.Expr, "process_") && !strings.Contains(target.Expr, "go_") || !balanced(target.Expr) {
				t.Errorf("panel %q asks %q", panel.Title, target.Expr)
			}
		}
	}
	checkNames(t, "the dashboard", string(text), all)
	if len(board.Panels) < 20 || board.Title == "" || board.UID == "" {
		t.Errorf("%q (%s) has %d panels", board.Title, board.UID, len(board.Panels))
	}
	// The dashboard shows every metric but those of notShown.
	for name := range all {
		if !bytes.Contains(text, []byte(name)) && !slices.Contains(notShown, name) {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// notShown are metrics for alerts, or for queries by hand.
var notShown = []string{"handoff_append_events_total", "handoff_worker_claims_total", "handoff_index_up", "handoff_index_seq",
	"handoff_index_behind_seconds", "handoff_index_complete",
	"handoff_gateway_requests", "handoff_gateway_memory_bytes", "handoff_gateway_answers_total",
	"handoff_gateway_busy_total", "handoff_gateway_reclaimed_total", "handoff_http_waits", "handoff_http_large_bodies", "handoff_http_requests_total"}

// TestAlerts checks that every rule reads metrics that exist and names the first command to run.
func TestAlerts(t *testing.T) {
	file, err := os.Open(operations + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	type rule struct {
		Alert, Expr, For    string
		Labels, Annotations map[string]string
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	if err := decoder.Decode(new(any)); err != io.EOF {
		t.Errorf("one document is enough: %v", err)
	}
	all, names := metrics(t), map[string]bool{}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			if checkNames(t, r.Alert, r.Expr, all) == 0 || !balanced(r.Expr) {
				t.Errorf("%s asks %q", r.Alert, r.Expr)
			}
			if names[r.Alert] || r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" ||
				!strings.Contains(r.Annotations["runbook"], "handoff ") {
				t.Errorf("%s: a name of its own, a severity, a summary and a runbook with a command are needed", r.Alert)
			}
			names[r.Alert] = true
		}
	}
	if len(names) < 12 {
		t.Errorf("there are %d alerts", len(names))
	}
}
