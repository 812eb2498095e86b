package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
)

const (
	// processTimeout is how long a process may take to report its health: longer than the
	// timeout of its own checks.
	processTimeout = 5 * time.Second
	// processReportBytesMax bounds the report.
	processReportBytesMax = 64 << 10
)

// Process reads from the process at a URL whether it is live and ready.
func Process(ctx context.Context, where string) Finding {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	var well []string
	for _, page := range []struct{ path, do, op string }{
		{"/healthz", "start it again", ""},
		{"/readyz", "wait, or look at what it names", explain.OpDoctor},
	} {
		checks, err := readHealth(ctx, where+page.path)
		var ill *unhealthyError
		switch {
		case errors.As(err, &ill):
			f := Fail(page.do, "at %s: %v", where, err)
			if page.op != "" {
				f = f.withAction(page.op)
			}
			return f
		case err != nil:
			return Fail("see whether it runs, and its log", "does not say at %s how it is: %v", where, err)
		}
		well = append(well, checks...)
	}
	return OK("at %s is ready%s", where, explain.After(": ", strings.Join(well, ", ")))
}

// unhealthyError has the problems that a process reports.
type unhealthyError struct{ problems []string }

func (e *unhealthyError) Error() string { return strings.Join(e.problems, "; ") }

// readHealth reads /healthz or /readyz, and returns the names of the checks that pass.
func readHealth(ctx context.Context, url string) (well []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	// Not through a proxy of the environment, which would ask another machine.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var report struct {
		OK     bool `json:"ok"`
		Checks []struct {
			Name    string `json:"name"`
			OK      bool   `json:"ok"`
			Problem string `json:"problem"`
		} `json:"checks"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, processReportBytesMax)).Decode(&report); err != nil {
		return nil, fmt.Errorf("%s answers %s, which no process of ours says", url, answer.Status)
	}
	ill := &unhealthyError{}
	for _, c := range report.Checks {
		if c.OK {
			well = append(well, c.Name)
		} else {
			ill.problems = append(ill.problems, c.Name+": "+c.Problem)
		}
	}
	if !report.OK {
		return nil, ill
	}
	return well, nil
}
