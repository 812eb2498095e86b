// Command alerts says which alerts of a file of rules fire over figures that stay as
// they are for two hours, but for ages, which grow. It prints one name a line. It is a module of its own: the evaluator is
// Prometheus's, which nothing else needs.
//
//	curl -s localhost:9090/metrics | go run . ../../docs/operations/alerts.yaml
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func main() {
	fired, err := run(os.Args[1:], os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "alerts:", err)
		os.Exit(1)
	}
	for _, name := range fired {
		fmt.Println(name)
	}
}

func run(args []string, figures io.Reader) ([]string, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("usage: alerts RULES < FIGURES")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return nil, err
	}
	rules, err := parseRules(text)
	if err != nil {
		return nil, err
	}
	began := time.Now().UTC().Truncate(time.Minute)
	held, err := parseFigures(figures, began)
	if err != nil {
		return nil, err
	}
	return firing(rules, held, began)
}

// rule is an alert: it fires when its expression has had a result for a time.
type rule struct {
	Alert string        `yaml:"alert"`
	Expr  string        `yaml:"expr"`
	For   time.Duration `yaml:"for"`
}

func parseRules(text []byte) ([]rule, error) {
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no rules")
	}
	return all, nil
}

const (
	// watched is longer than the longest time that a rule waits.
	watched = 2 * time.Hour
	// step is between two scrapes, and between two evaluations.
	step = time.Minute
	// stepsBefore is for how long the figures have been scraped before the first
	// evaluation: longer than any range of a rule.
	stepsBefore = 90
	// passEvery is how often the instants move on that figures show: an idle engine is
	// gone over by its supervisor all the same.
	passEvery = 5 * time.Minute
)

// parseFigures reads what a scrape returns and holds each figure for the whole time.
func parseFigures(r io.Reader, began time.Time) (series, error) {
	var all series
	metrics := parser.NewParser(parser.Options{})
	for lines := bufio.NewScanner(r); lines.Scan(); {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("no figure: %s", line)
		}
		metric, err := metrics.ParseMetric(line[:at])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		scraped := labels.NewBuilder(metric).Set("job", "handoff").Set("instance", "localhost:9090").Labels()
		all = append(all, hold(scraped, value, began))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no figures")
	}
	return all, nil
}

func hold(metric labels.Labels, value float64, began time.Time) promql.Series {
	held := promql.Series{Metric: metric}
	instant := strings.HasSuffix(metric.Get(labels.MetricName), "_timestamp_seconds")
	age := strings.HasSuffix(metric.Get(labels.MetricName), "_oldest_seconds") && value > 0
	for i := -stepsBefore; i <= int(watched/step); i++ {
		since := time.Duration(i) * step
		now := value
		switch {
		case instant:
			now += since.Truncate(passEvery).Seconds()
		case age: // what waits goes on waiting
			now = max(0, now+since.Seconds())
		}
		held.Floats = append(held.Floats, promql.FPoint{T: began.Add(since).UnixMilli(), F: now})
	}
	return held
}

// firing evaluates every rule at each step, and names those that fire at any of them.
func firing(rules []rule, held series, began time.Time) ([]string, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute})
	var fired []string
	for _, r := range rules {
		pending := map[string]time.Time{} // by labels, since when
		for now := began; !now.After(began.Add(watched)); now = now.Add(step) {
			query, err := engine.NewInstantQuery(context.Background(), held, nil, r.Expr, now)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Alert, err)
			}
			result, err := query.Exec(context.Background()).Vector()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Alert, err)
			}
			still := map[string]time.Time{}
			for _, sample := range result {
				of := sample.Metric.String()
				since, known := pending[of]
				if !known {
					since = now
				}
				if still[of] = since; now.Sub(since) >= r.For && !slices.Contains(fired, r.Alert) {
					fired = append(fired, r.Alert)
				}
			}
			pending = still
			query.Close()
		}
	}
	return fired, nil
}
