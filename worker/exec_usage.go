package worker

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker/output"
)

// followUsage reports the last line of a program's usage file, whenever it says more, until ctx
// ends.
func (h Handoff) followUsage(ctx context.Context, path string) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for last, unread := "", ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		line, err := lastLine(path)
		if err != nil && err.Error() != unread {
			unread = err.Error()
			h.logger().Warn("usage file not read", "err", err)
		}
		if line == "" || line == last {
			continue
		}
		last = line
		usage := output.LineUsage([]byte(line))
		if usage == nil {
			h.logger().Warn("usage not reported", "why", "it is no usage", "line", protocol.Printable(protocol.CutText(line, 512)))
			continue
		}
		if err := h.Spent(ctx, *usage); err != nil && ctx.Err() == nil {
			h.logger().Warn("usage not reported", "err", err)
		}
	}
}

// withUsage adds what the program has used to its result, or to what else came of it: by its usage
// file, and by what it has printed.
func (p *program) withUsage(ctx context.Context, h Handoff, usageFile string, result protocol.Result, err error) (protocol.Result, error) {
	usage := p.usage(usageFile)
	if usage == nil {
		return result, err
	}
	var failure *Failure
	var back *rollBackError
	switch {
	case err == nil:
		if result.Usage != nil {
			*usage = usage.Max(*result.Usage)
		}
		result.Usage = usage
	case errors.As(err, &failure):
		failure.Usage = usage
	case errors.As(err, &back) && back.partial != nil:
		back.partial.Usage = usage
	default:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTimeout)
		defer cancel()
		if err := h.Spent(ctx, *usage); err != nil {
			h.logger().Warn("usage not reported", "err", err)
		}
	}
	return result, err
}

// usage is what a program says that it has used; nil is nothing.
func (p *program) usage(path string) *protocol.Usage {
	var said *protocol.Usage
	if line, err := lastLine(path); err == nil && line != "" {
		said = output.LineUsage([]byte(line))
	}
	if p.stdout.isOver() || p.cfg.Output == output.Text {
		return said
	}
	printed := output.Usage(p.stdout.buf.Bytes())
	if said == nil || printed == nil {
		if said == nil {
			return printed
		}
		return said
	}
	most := said.Max(*printed)
	return &most
}
