package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// redriveView is one redriven handoff for programs.
type redriveView struct {
	Origin string `json:"origin"`
	Ticket string `json:"ticket"`
	Agent  string `json:"agent"`
}

// redrivesAtOnce is how many are redriven side by side.
const redrivesAtOnce = 16

// redrive redrives all of them, and prints each as it is done.
func (a *app) redrive(ctx context.Context, s api.Operator, tickets []string, to string, again bool) error {
	var (
		mu      sync.Mutex // guards what follows, and the output
		done    = make([]redriveView, len(tickets))
		ended   int
		refused []error
		tell    = a.progress()
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(redrivesAtOnce)
	for i, ticket := range tickets {
		group.Go(func() error {
			state, err := s.Redrive(ctx, api.Redrive{Ticket: ticket, To: to, Again: again})
			err = advise(err, protocol.CodeNoAgent, "target.agent", explain.OpRedrive, "ticket", ticket, "again", "")
			mu.Lock()
			defer mu.Unlock()
			ended++
			tell("handoff: %d of %d\n", ended, len(tickets))
			switch {
			case is[*protocol.Error](err):
				refused = append(refused, err)
				if len(tickets) > 1 {
					a.notef("handoff: %s was not redriven: %s\n", ticket, err)
				}
				return nil
			case err != nil:
				return fmt.Errorf("redrive %s: %w", ticket, err)
			}
			done[i] = redriveView{ticket, state.Ticket, cmp.Or(state.Agent, state.TargetWords())}
			if a.format == formatJSON { // one document, at the end
				return nil
			}
			return a.line(done[i], "%s -> %s  %s\n", ticket, done[i].Ticket, done[i].Agent)
		})
	}
	err := group.Wait()
	done = slices.DeleteFunc(done, func(v redriveView) bool { return v.Ticket == "" })
	if a.format == formatJSON && (len(done) > 0 || len(refused) == 0 && err == nil) {
		err = errors.Join(list(a, done), err)
	}
	return errors.Join(err, notRedriven(refused, len(tickets)))
}

func notRedriven(refused []error, of int) error {
	switch {
	case len(refused) == 0:
		return nil
	case of == 1:
		return refused[0]
	}
	var first *protocol.Error
	errors.As(refused[0], &first)
	return protocol.Errorf(first.Code, first.Field, "%d of %d were not redriven; one of them: %s", len(refused), of, first.Message)
}
