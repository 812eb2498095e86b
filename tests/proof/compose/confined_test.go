//go:build proof

package compose

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"time"
)

// container is what is looked at of one.
type container struct {
	Name   string
	Config struct {
		Image, User string
		Labels      map[string]string
		Healthcheck *struct{ Test []string }
	}
	State struct {
		Status   string
		ExitCode int
		Health   *struct{ Status string }
	}
	HostConfig struct {
		ReadonlyRootfs       bool
		CapDrop, SecurityOpt []string
		Memory               int64
		RestartPolicy        struct{ Name string }
		PortBindings         map[string][]struct{ HostIP string }
	}
}

func (c container) service() string { return c.Config.Labels["com.docker.compose.service"] }

func (s *stack) inspect() []container {
	s.Helper()
	ids := strings.Fields(s.docker("ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+s.name))
	var all []container
	if err := json.Unmarshal([]byte(s.docker(append([]string{"container", "inspect"}, ids...)...)), &all); err != nil {
		s.Fatal(err)
	}
	return all
}

// confined: no container may do more than it must.
func (s *stack) confined() {
	s.Helper()
	services := map[string]int{}
	for _, c := range s.inspect() {
		services[c.service()]++
		host, oneShot := c.HostConfig, c.service() == "topology"
		switch {
		case !host.ReadonlyRootfs, !slices.Equal(host.CapDrop, []string{"ALL"}), host.Memory == 0,
			!slices.ContainsFunc(host.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, "no-new-privileges") }):
			s.Errorf("%s may do more than it must: %+v", c.Name, host)
		case strings.HasPrefix(c.Config.Image, "handoff") && c.Config.User != "65532:65532":
			s.Errorf("%s runs as %q", c.Name, c.Config.User)
		case oneShot && (c.State.Status != "exited" || c.State.ExitCode != 0):
			s.Errorf("%s is %s, exit code %d", c.Name, c.State.Status, c.State.ExitCode)
		case !oneShot && (c.State.Health == nil || c.State.Health.Status != "healthy" || host.RestartPolicy.Name != "unless-stopped"):
			s.Errorf("%s is %+v, and is restarted %q", c.Name, c.State, host.RestartPolicy.Name)
		}
		for port, bindings := range host.PortBindings {
			for _, binding := range bindings {
				if ip := net.ParseIP(binding.HostIP); ip == nil || !ip.IsLoopback() {
					s.Errorf("%s exposes %s on all interfaces: %+v", c.Name, port, binding)
				}
			}
		}
	}
	for service, want := range map[string]int{"nats-1": 1, "nats-2": 1, "nats-3": 1, "topology": 1, "supervise": 2, "index-1": 1, "index-2": 1, "serve": 1, "reviewer": 1} {
		if services[service] != want {
			s.Errorf("%d of %s, want %d", services[service], service, want)
		}
	}
}

// checked: what the health check runs tells a container that is cut off, and so does
// Docker.
func (s *stack) checked() {
	s.Helper()
	cut := map[string]string{}
	for _, service := range []string{"supervise", "index-1", "reviewer"} {
		of := s.containers(service)[0]
		cut[of] = service
		s.selfCheck(of, true)
		s.docker("network", "disconnect", s.name+"_engine", of)
	}
	for of := range cut {
		s.selfCheck(of, false)
	}
	for of := range cut {
		s.health(of, "unhealthy")
	}
	for of, service := range cut {
		s.docker("network", "connect", "--alias", service, s.name+"_engine", of)
	}
	for of := range cut {
		s.selfCheck(of, true)
		s.health(of, "healthy")
	}
}

// health waits until Docker says of a container how it is.
func (s *stack) health(container, want string) {
	s.Helper()
	for began := time.Now(); ; s.pause(200 * time.Millisecond) {
		is := s.docker("container", "inspect", "--format", "{{.State.Health.Status}}", container)
		if is == want {
			s.Logf("%s is %s, after %v", container, is, time.Since(began).Round(100*time.Millisecond))
			return
		}
		if s.ctx.Err() != nil || time.Since(began) > 3*time.Minute {
			s.Fatalf("%s is %s, and should be %s", container, is, want)
		}
	}
}

// selfCheck waits until the health check of a container says that it is well, or not.
func (s *stack) selfCheck(container string, well bool) {
	s.Helper()
	began := time.Now()
	for said := ""; ; s.pause(200 * time.Millisecond) {
		out, err := output(s.ctx, nil, "docker", "exec", container, "/handoff", "doctor", "--self")
		if (err == nil) == well {
			s.Logf("%s is well: %v, after %v", container, well, time.Since(began).Round(100*time.Millisecond))
			return
		}
		said = out
		if err != nil {
			said = err.Error()
		}
		if s.ctx.Err() != nil || time.Since(began) > 2*time.Minute {
			s.Fatalf("%s: doctor --self says, when it should be %v that it is well: %s", container, well, said)
		}
	}
}
