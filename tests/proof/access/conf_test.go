//go:build proof

package access

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestMissingUserKey checks that a server without the key of one user does not start, so that no
// user has a well-known key.
func TestMissingUserKey(t *testing.T) {
	if testworld.Race {
		t.Skip("the server has no race detector in it: run it without -race")
	}
	server := testworld.NATSServer(t)
	conf := filepath.Join("..", "..", "..", "docs", "operations", "accounts.conf")
	check := func(missing string) (string, error) {
		cmd := exec.Command(server, "-t", "-c", conf)
		cmd.Env = []string{"HOME=" + t.TempDir()}
		for _, role := range roles {
			pair, err := nkeys.CreateUser()
			if err != nil {
				t.Fatal(err)
			}
			key, err := pair.PublicKey()
			if err != nil {
				t.Fatal(err)
			}
			if role != missing {
				cmd.Env = append(cmd.Env, variable(role)+"="+key)
			}
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check("nobody"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, role := range roles {
		if out, err := check(role); err == nil || !strings.Contains(out, variable(role)) {
			t.Errorf("without %s: %v: %s", variable(role), err, out)
		}
	}
	body, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(body), "nkey: $"); n != len(roles) {
		t.Errorf("accounts.conf has %d users, and %d are tested", n, len(roles))
	}
}

// variable is what accounts.conf calls the public key of a role.
func variable(role string) string {
	return "HANDOFF_" + strings.ToUpper(strings.ReplaceAll(role, "-", "_")) + "_NKEY"
}
