package cli

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// meetProfile adds to the profile that is there what was asked for, if told to,
// and else says what it leaves out: a capability that no handoff is routed by is a
// surprise better met here.
func (a *app) meetProfile(ctx context.Context, b *broker.Broker, wanted protocol.Profile, update bool) error {
	profile, err := b.Profile(ctx, wanted.ID)
	if errors.Is(err, broker.ErrNotFound) {
		return nil // the worker registers it
	}
	if err != nil {
		return err
	}
	return a.meet(profile, wanted, update, func(p protocol.Profile) error { return b.PutProfile(ctx, p) })
}

// meet is meetProfile with the profile that is there.
func (a *app) meet(profile, wanted protocol.Profile, update bool, put func(protocol.Profile) error) error {
	var lacking []string
	for _, c := range wanted.Capabilities {
		i := slices.IndexFunc(profile.Capabilities, func(has protocol.Capability) bool { return has.ID == c.ID })
		switch {
		case i < 0:
			lacking = append(lacking, c.ID)
			profile.Capabilities = append(profile.Capabilities, c)
		case profile.Capabilities[i] != c:
			lacking = append(lacking, c.ID)
			profile.Capabilities[i] = c
		}
	}
	if wanted.Description != "" && wanted.Description != profile.Description {
		lacking = append(lacking, "the description")
		profile.Description = wanted.Description
	}
	if is := cmp.Or(profile.Handoffs, protocol.HandoffsOn); wanted.Handoffs != "" && wanted.Handoffs != is {
		if !update { // it would hand off what it is told not to
			return protocol.Errorf(protocol.CodeConflict, "handoffs", "%s is registered with handoffs %s, not %s; --update changes that, for all of its workers", wanted.ID, is, wanted.Handoffs)
		}
		lacking = append(lacking, "handoffs "+string(wanted.Handoffs))
		profile.Handoffs = wanted.Handoffs
	}
	if wanted.Bids && !profile.Bids {
		lacking = append(lacking, "bids")
		profile.Bids = true
	}
	if len(lacking) == 0 {
		return nil
	}
	if !update {
		a.notef("handoff: %s is registered already, without %s; --update adds it\n", wanted.ID, strings.Join(lacking, ", "))
		return nil
	}
	profile.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	if err := profile.Validate(); err != nil {
		return err
	}
	return put(profile)
}

// childEnv lets "handoff submit" inside the program find the engine that its
// worker uses, whichever way that was said.
func (a *app) childEnv() []string {
	return a.connEnv(strings.Join(a.engine.Conn().Opts.Servers, ","))
}

// connEnv is the environment that says where the engine is: at these servers, if
// it is not empty.
func (a *app) connEnv(servers string) []string {
	conn := a.conn.resolve(a.env)
	env := []string{timeoutEnv + "=" + conn.timeout.String(), "NATS_CONTEXT=" + conn.context, "NATS_INBOX_PREFIX=" + conn.inboxPrefix}
	if a.dir != "" { // a program has the environment of the command line, not that of the process
		for _, name := range []string{"PATH", "HOME", "PWD", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"} {
			env = append(env, name+"="+a.env(name))
		}
	}
	if servers != "" {
		env = append(env, "NATS_URL="+servers)
	}
	for name, path := range map[string]string{"NATS_CREDS": conn.creds, "NATS_NKEY": conn.nkey,
		"NATS_CA": conn.tlsCA, "NATS_CERT": conn.tlsCert, "NATS_KEY": conn.tlsKey} {
		if absolute, err := filepath.Abs(path); path != "" && err == nil {
			path = absolute
		}
		env = append(env, name+"="+path)
	}
	return env
}

// runWorker runs a program for each handoff until ctx ends. b is nil through a gateway.
func (a *app) runWorker(ctx context.Context, shown *showing, b *broker.Broker, cfg worker.Config, program worker.ExecConfig, open func(worker.Handler) (*worker.Worker, error)) error {
	handler, err := worker.NewExec(program)
	if err != nil {
		return err
	}
	w, err := open(handler)
	if err != nil {
		return err
	}
	a.hurry.Store(w.Hurry)
	shown.worker(cfg.Agent, b, w)
	shown.started()
	return w.Run(ctx)
}
