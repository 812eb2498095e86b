package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// onReader reads about many handoffs over one connection. agents are those by which they
// are selected.
func (a *app) onReader(ctx context.Context, agents []string, do func(context.Context, dossier.Reader) error) error {
	return a.onSessionAbout(ctx, agents, func(ctx context.Context, s *api.Session) error { return do(ctx, s) })
}

// onSessionAbout is onReader with all operations.
func (a *app) onSessionAbout(ctx context.Context, agents []string, do func(context.Context, *api.Session) error) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	a.noteUnknown(ctx, b, agents)
	return do(ctx, a.session(b, ""))
}

// answersOf asks over an engine, each question within --timeout and says meanwhile that
// there is no answer. Where no index answers the error says what to do.
func (a *app) answersOf(b *broker.Broker) ask.Answers {
	return ask.Client{Asker: asker{engine: b, timeout: a.timeout(), silent: func() (stop func()) { return a.tellSilence("the index") }}}
}

type asker struct {
	engine  ask.Asker
	timeout time.Duration
	silent  func() (stop func()) // nil: nothing is said
}

// Ask implements ask.Asker.
func (a asker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if a.silent != nil {
		defer a.silent()()
	}
	limited, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	answer, err := a.engine.Ask(limited, verb, question)
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused): // the flags have the names of the fields
		refused.Field = strings.TrimPrefix(refused.Field, "filter.")
		return nil, refused
	case errors.Is(err, broker.ErrNoAnswer):
		return nil, fmt.Errorf("%w; start an index: handoff index (handoff dev has one)", broker.ErrNoAnswer)
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: the index has given no answer for %s in %v; --timeout waits longer", broker.ErrNoAnswer, verb, a.timeout)
	}
	return answer, err
}

// behind is an answer that lacks something.
func behind(s ask.Position) error {
	how := "cannot tell at the moment whether it has everything"
	if s.Behind > 0 {
		how = fmt.Sprintf("has read %d of %d entries of the ledger", s.Seq, s.Seq+s.Behind)
	}
	return &behindError{"the index " + how + "; ask again when it has caught up, or see what it has with --stale"}
}

// freshness is how much of the ledger an answer must have.
type freshness struct{ stale bool }

func (f *freshness) flag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.stale, "stale", false, "print what the index has, even if it has not read all of the ledger")
}

// ask says it in a question. With --stale the answer does not wait for more.
func (f freshness) ask() ask.Question {
	if f.stale {
		return ask.Question{WaitMS: -1}
	}
	return ask.Question{}
}

// check refuses an answer that is not fresh enough.
func (f freshness) check(s ask.Position) error {
	if s.Complete || f.stale {
		return nil
	}
	return behind(s)
}

// standView is what an answer rests on, for programs that read lines.
type standView struct {
	ask.Position
	Cursor string `json:"cursor,omitempty"`
}

// stand says beside the output what it rests on: to people who asked for
// --stale, and to programs that read lines. In a document it is a part of it.
func (a *app) stand(f freshness, s ask.Position, cursor string) error {
	switch {
	case a.format == formatJSONL:
		line, err := encode(standView{s, cursor}, false)
		if err != nil {
			return err
		}
		_, err = a.err.Write(escapeJSON(line))
		return err
	case a.format == formatJSON || !f.stale:
	case s.Complete:
		a.notef("handoff: as of entry %d of the ledger: nothing is missing\n", s.Seq)
	case s.Behind > 0:
		a.notef("handoff: as of entry %d of the ledger: %d more are not in it yet\n", s.Seq, s.Behind)
	default:
		a.notef("handoff: as of entry %d of the ledger: whether more are there is not known\n", s.Seq)
	}
	return nil
}
