package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/telemetry"
)

const (
	// processWithin is how long a process may take to say how it is: longer than it
	// gives its own checks.
	processWithin = 5 * time.Second
	// processSaysMax is how much of what it says is read.
	processSaysMax = 64 << 10
)

// askProcess asks a process that shows how it is whether its loops turn and whether
// it can do its work. addr is what that process was given: --metrics, or
// $HANDOFF_METRICS.
func askProcess(ctx context.Context, addr string) finding {
	where, err := whereToAsk(addr)
	if err != nil {
		return fail("set $"+metricsEnv+" to the address that the process shows its figures at, such as 127.0.0.1:9090", "$%s: %v", metricsEnv, err)
	}
	ctx, cancel := context.WithTimeout(ctx, processWithin)
	defer cancel()
	var well []string
	for _, page := range []struct{ path, do string }{
		{"/healthz", "start it again"},
		{"/readyz", "wait, or look at what it names: handoff doctor"},
	} {
		checks, err := askPage(ctx, where+page.path)
		switch {
		case is[*unhealthy](err):
			return fail(page.do, "at %s: %v", where, err)
		case err != nil:
			return fail("see whether it runs, and its log", "does not say at %s how it is: %v", where, err)
		}
		well = append(well, checks...)
	}
	return ok("at %s is ready%s", where, prefixed(": ", strings.Join(well, ", ")))
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// whereToAsk is the URL of a process that listens at addr, from its own machine: one
// that listens everywhere is asked on loopback.
func whereToAsk(addr string) (string, error) {
	complete, err := telemetry.Address(addr)
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(complete)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case port == "0":
		return "", errors.New("port 0 is any port: nobody knows which to ask")
	case ip != nil && ip.IsUnspecified() && ip.To4() == nil:
		host = "::1"
	case ip != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// unhealthy is the error of a process that says itself what is wrong.
type unhealthy struct{ problems []string }

func (e *unhealthy) Error() string { return strings.Join(e.problems, "; ") }

// askPage reads /healthz or /readyz, and returns the names of the checks that are well.
func askPage(ctx context.Context, url string) (well []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	// Never through a proxy that the environment names: it would ask another machine.
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
	if err := json.NewDecoder(io.LimitReader(answer.Body, processSaysMax)).Decode(&report); err != nil {
		return nil, fmt.Errorf("%s answers %s, which no process of ours says", url, answer.Status)
	}
	sick := &unhealthy{}
	for _, c := range report.Checks {
		if c.OK {
			well = append(well, c.Name)
		} else {
			sick.problems = append(sick.problems, c.Name+": "+c.Problem)
		}
	}
	if !report.OK {
		return nil, sick
	}
	return well, nil
}
