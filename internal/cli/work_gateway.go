package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// workThroughGateway is work for a worker that may not reach the engine.
func (a *app) workThroughGateway(ctx context.Context, cfg worker.Config, flags *workFlags, program worker.ExecConfig) error {
	shown, err := a.show(ctx, flags.metrics, cfg.Log)
	if err != nil {
		return err
	}
	defer shown.close()
	client, profile, done, err := a.meetGateway(ctx, cfg, flags)
	if err != nil {
		return err
	}
	defer done()
	traces := a.startTraces(ctx, cfg.Log)
	defer traces.Stop()
	if cfg.Lease == 0 && cfg.Beat == 0 { // else the lease follows from the beat
		cfg.Lease = client.Lease()
	}
	err = a.meet(profile, cfg.Profile, flags.update, func(p protocol.Profile) error {
		_, err := client.ReplaceProfile(ctx, p)
		return err
	})
	if err != nil {
		return err
	}
	program.Env = append(a.connEnv(strings.Join(client.Servers(), ",")), gatewayEnv+"=1")
	cfg.Trace = traces.WorkContext
	return a.runWorker(ctx, shown, nil, cfg, program, func(handler worker.Handler) (*worker.Worker, error) { return worker.NewOver(client, cfg, handler) })
}

// meetGateway connects and registers the agent, and waits for a gateway if told to.
func (a *app) meetGateway(ctx context.Context, cfg worker.Config, flags *workFlags) (client *natsgateway.Client, profile protocol.Profile, done func(), err error) {
	meet := func(ctx context.Context) error {
		if client, done, err = a.dialGateway(ctx, cfg.Agent); err != nil {
			return err
		}
		if profile, err = a.registerAtGateway(ctx, client, cfg.Profile); err != nil {
			done()
		}
		return err
	}
	if !flags.wait.waits(a) {
		err = meet(ctx)
		return client, profile, done, err
	}
	a.waiting = true
	defer func() { a.waiting = false }()
	err = a.waitFor(ctx, broker.Config{Log: cfg.Log}, func(ctx context.Context) error {
		err := meet(ctx)
		if errors.Is(err, natsgateway.ErrNobody) {
			err = &broker.SilenceError{After: a.timeout(), Last: err}
		}
		return err
	})
	return client, profile, done, err
}

// registerAtGateway registers the agent, or reads its profile, and says what to start
// where no gateway answers: a worker would wait for one for ever.
func (a *app) registerAtGateway(ctx context.Context, client *natsgateway.Client, wanted protocol.Profile) (protocol.Profile, error) {
	ctx, cancel := a.asking(ctx)
	defer cancel()
	return client.Register(ctx, wanted)
}
