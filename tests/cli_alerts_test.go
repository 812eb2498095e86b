package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// alertsBinary builds the evaluator of alerts, a module of its own, where its modules
// can be had.
var alertsBinary = sync.OnceValues(func() (string, error) {
	dir, err := testworld.Dir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "alerts")
	cmd := exec.Command("go", "build", "-o", bin, ".")
	cmd.Dir = "alerts"
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

// cmdAlerts evaluates the shipped rules over what $FIGURES shows now, held for two hours.
// The alerts that fire must be those named, in the order of the rules; none means silence.
func cmdAlerts(ts *testscript.TestScript, neg bool, args []string) {
	bin, err := alertsBinary()
	if err != nil {
		of(ts).t.Skip("skipped: tests/alerts, which evaluates alert rules, is not to be built here: ", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	rules, err := filepath.Abs("../docs/operations/alerts.yaml")
	ts.Check(err)
	var figures []byte
	var fired string
	defer func() {
		if fired != strings.Join(args, " ") {
			ts.Logf("the figures:\n%s", figures)
		}
	}()
	eventually(ctx, ts, fmt.Sprintf("alerts %q", args), func() bool {
		var err error
		if figures, err = scrape(ctx, ts); err != nil {
			return false
		}
		cmd := exec.CommandContext(ctx, bin, rules)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(figures), os.Stderr
		out, err := cmd.Output()
		if ctx.Err() != nil {
			return false
		}
		ts.Check(err)
		fired = strings.Join(strings.Fields(string(out)), " ")
		return fired == strings.Join(args, " ")
	})
}

// cmdFigures waits until what $FIGURES shows has all of these lines.
func cmdFigures(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	var missing []string
	defer func() {
		if len(missing) > 0 {
			ts.Logf("missing: %q", missing)
		}
	}()
	eventually(ctx, ts, fmt.Sprintf("figures %q", args), func() bool {
		figures, err := scrape(ctx, ts)
		if err != nil {
			return false
		}
		missing = slices.DeleteFunc(slices.Clone(args), func(line string) bool {
			return bytes.Contains(figures, []byte("\n"+line+"\n"))
		})
		return len(missing) == 0
	})
}

// scrape reads what $FIGURES shows now.
func scrape(ctx context.Context, ts *testscript.TestScript) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ts.Getenv("FIGURES")+"/metrics", nil)
	ts.Check(err)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	figures, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", res.Status)
	}
	return figures, err
}
