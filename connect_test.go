package handoff_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agenthandoff/handoff"
)

// TestConnect finds the engine by a URL, and without one by the environment.
func TestConnect(t *testing.T) {
	ctx, url, stop := engine()
	defer stop()
	config := t.TempDir()
	dir := filepath.Join(config, "nats", "context")
	check(os.MkdirAll(dir, 0o700))
	check(os.WriteFile(filepath.Join(dir, "here.json"), fmt.Appendf(nil, `{"url": %q}`, url), 0o600))
	const nowhere = "nats://127.0.0.1:1"
	for name, c := range map[string]struct{ url, inURL, inContext string }{
		"a URL beats the environment": {url: url, inURL: nowhere, inContext: "none"},
		"NATS_URL":                    {inURL: url},
		"NATS_CONTEXT":                {inContext: "here"},
		"both":                        {inURL: url, inContext: "here"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, unset := range []string{"NATS_CREDS", "NATS_NKEY", "NATS_CA", "NATS_CERT", "NATS_KEY", "NATS_INBOX_PREFIX"} {
				t.Setenv(unset, "")
			}
			t.Setenv("XDG_CONFIG_HOME", config)
			t.Setenv("NATS_URL", c.inURL)
			t.Setenv("NATS_CONTEXT", c.inContext)
			client, err := handoff.Connect(ctx, c.url, "planner")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { check(client.Close()) }()
			if profile, err := client.Session().Profile(ctx, "reviewer"); err != nil || profile.ID != "reviewer" {
				t.Errorf("it is another engine: %+v, %v", profile, err)
			}
		})
	}
}
