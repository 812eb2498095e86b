//go:build proof

package compose

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	composeFile = "../../../docker-compose.yml"
	natsImage   = "nats:2.15.2-alpine"
	// standInLabel is on an image of ours that stands in for one that could not be pulled.
	standInLabel = "handoff.test.standin"
)

// natsDockerfile is what of the official image (nats-io/nats-docker, alpine) the compose
// file relies on: the server and wget in the PATH. Its entry point only runs a
// command that names the server.
const natsDockerfile = `FROM scratch
LABEL ` + standInLabel + `=true
COPY out/nats-server /usr/local/bin/nats-server
COPY out/wget /usr/bin/wget
ENV PATH=/usr/local/bin:/usr/bin
EXPOSE 4222 6222 8222
CMD ["nats-server", "--config", "/etc/nats/nats-server.conf"]
`

// imageLines are the lines of the Dockerfile that make the images, and what they
// copy is given with the context instead of being made by the stage before.
func imageLines(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, found := strings.Cut(string(text), "\nFROM scratch AS handoff\n")
	if !found || strings.Count(lines, "--from=build ") != 4 {
		t.Fatal("the Dockerfile has no stage that begins with FROM scratch AS handoff and copies four times from build")
	}
	lines = strings.ReplaceAll(strings.ReplaceAll(lines, "--from=build ", ""), " /out/", " out/")
	return "FROM scratch AS handoff\n" + lines
}

// makeImages makes what the compose file runs: ours under the tag of this test, and
// that of NATS where it is not here. It takes away what it made when the test ends.
// overlay, if there is one, is that of go build (testworld.ClockOverlay). It tells whether the
// servers are ours, too.
func makeImages(t *testing.T, tag, overlay string) (ours bool) {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	if err := os.MkdirAll(filepath.Join(out, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, pkg := range map[string]string{"handoff": "github.com/agenthandoff/handoff/cmd/handoff",
		"agent": "github.com/agenthandoff/handoff/docs/operations/agent", "wget": "github.com/agenthandoff/handoff/tests/proof/compose/standin/wget",
		"nats-server": "github.com/nats-io/nats-server/v2"} {
		// As all programs of a run without cgo are built: what was compiled for those is linked.
		cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-overlay", overlay, "-o", filepath.Join(out, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
	}
	lines := imageLines(t)
	build(t, dir, lines, "handoff", "handoff:"+tag)
	build(t, dir, lines, "agent", "handoff-agent:"+tag)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	standIn, err := output(ctx, nil, "docker", "image", "inspect", "--format", `{{index .Config.Labels "`+standInLabel+`"}}`, natsImage)
	if err == nil && standIn != "true" {
		t.Logf("%s is here, and is used", natsImage)
		return false
	}
	t.Logf("%s is not here: one with the server of go.mod and a small wget stands in for it", natsImage)
	build(t, dir, natsDockerfile, "", natsImage)
	return true
}

// build makes one image, which goes with the test.
func build(t *testing.T, dir, dockerfile, target, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var env []string
	if _, err := output(ctx, nil, "docker", "buildx", "version"); err != nil {
		env = []string{"DOCKER_BUILDKIT=0"}
	}
	path := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(path, []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"build", "--quiet", "--network", "none", "--file", path, "--tag", name}
	if target != "" {
		args = append(args, "--target", target)
	}
	if _, err := output(ctx, env, "docker", append(args, dir)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := output(ctx, nil, "docker", "image", "rm", name); err != nil {
			t.Error(err)
		}
	})
}
