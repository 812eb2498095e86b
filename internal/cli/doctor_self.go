package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
)

// examineSelf examines this process and how it reaches the engine, or the process that
// the environment names.
func (a *app) examineSelf(ctx context.Context, skip []string) []doctor.Finding {
	var all []doctor.Finding
	add := func(name string, f doctor.Finding) {
		f.Check = name
		all = append(all, f)
	}
	add("program", judgeProgram())
	add("settings", a.judgeSettings())
	if addr := a.env(metricsEnv); addr != "" {
		add("process", judgeProcess(ctx, addr))
		return all
	}
	x := doctor.ExamineServer(ctx, a.access(), "streams", "consumers")
	return append(all, doctor.Judge(x, append(slices.Clone(skip), slices.DeleteFunc(doctor.CheckNames(), aboutConnection)...))...)
}

// aboutConnection tells which checks of the engine say something of this process.
func aboutConnection(name string) bool {
	return slices.Contains([]string{"engine", "version", "store", "clock"}, name)
}

func judgeProgram() doctor.Finding {
	path, err := os.Executable()
	if err != nil {
		return doctor.Warn("start it by its path", "cannot tell where it is: %v", err)
	}
	return doctor.OK("handoff %s, protocol %s, %s, %s/%s, at %s", programVersion(), protocol.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, path)
}

// programVersion is what this program was built from.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// judgeSettings says where the engine is looked for, and why there.
func (a *app) judgeSettings() doctor.Finding {
	given, conn := a.conn, a.conn.resolve(a.env)
	why := "nothing else is set"
	switch {
	case given.context != "":
		why = "--context says so"
	case given.url != "":
		why = "--nats says so"
	case conn.context != "":
		why = "$NATS_CONTEXT says so"
	case conn.url != "":
		why = "$NATS_URL says so"
	}
	if err := conn.checkURL(); err != nil {
		return doctor.Fail("write nats://HOST:4222", "%v", err)
	}
	for name, path := range map[string]string{"credentials file": conn.creds, "certificate authority": conn.tlsCA} {
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			return doctor.Fail("say which file it is: --creds, --tlsca, $NATS_CREDS, $NATS_CA", "the %s cannot be read: %v", name, err)
		}
	}
	if me := a.env("HANDOFF_AGENT"); me != "" {
		if err := protocol.CheckAgent("HANDOFF_AGENT", me); err != nil {
			return doctor.Fail("set $HANDOFF_AGENT to the name of an agent, or to nothing", "%v", err)
		}
		return doctor.OK("the engine is looked for at %s (%s); commands speak for %s ($HANDOFF_AGENT)", conn.where(), why, me)
	}
	return doctor.OK("the engine is looked for at %s (%s)", conn.where(), why)
}

// whereToAsk is the URL of a process that listens at addr, from its own machine: one
// that listens everywhere is asked on loopback.
func whereToAsk(addr string) (string, error) {
	complete, err := telemetry.ListenAddress(addr)
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(complete)
	if err != nil {
		return "", err
	}
	switch ip := net.ParseIP(host); {
	case port == "0":
		return "", errors.New("port 0 is any port: it cannot be told which to ask")
	case ip != nil && ip.IsUnspecified() && ip.To4() == nil:
		host = "::1"
	case ip != nil && ip.IsUnspecified():
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// judgeProcess asks the process that listens at addr: what its --metrics or $HANDOFF_METRICS was.
func judgeProcess(ctx context.Context, addr string) doctor.Finding {
	where, err := whereToAsk(addr)
	if err != nil {
		return doctor.Fail("set $"+metricsEnv+" to the address that the process shows its figures at, such as 127.0.0.1:9090", "$%s: %v", metricsEnv, err)
	}
	return doctor.Process(ctx, where)
}
