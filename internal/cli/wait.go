package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newWait(a *app) *cobra.Command {
	o := waitOptions{Until: string(api.UntilClosed)}
	cmd := &cobra.Command{
		Use:   "wait TICKET",
		Short: "Wait until a handoff is closed, accepted, asks, or has come back",
		Long: `Wait blocks until the handoff is closed, and prints how it ended. Without --timeout it
waits as long as that takes, through elections too. Waiting changes nothing, and any
number may wait. How long an engine may be silent before the wait has begun is not this
--timeout, but $HANDOFF_TIMEOUT (12s).

--until waits for something else, or for the end if that comes first: accepted (an agent
has taken it), asked (an agent wants an answer); returned (it is closed, and its source
has taken in the return, if one is expected). The last also ends when the return can no
longer arrive, since its source serves no queue or refused it, and names the reason.

` + chainHelp + `--tree waits for all handoffs that follow from this one: those that it hands off, the
members of groups, and the chains of all of these. The exit code is that of the end of
its own chain. Should the wait end before, it names those that are still open (with -o
json in "open"). Handoffs that merely name one of these as their parent are not waited
for.

` + gatewayHelp + ` It waits until closed, accepted or asked.

` + speakHelp + `

Exit codes: 0 closed with success (or accepted, asked); 4 still open when the timeout
passed; 5 closed without success; 12 only a person can help; 3 no such ticket.`,
		Example: `  handoff wait 5f0c…
  handoff wait 5f0c… --chain
  handoff wait 5f0c… --tree --timeout 1h
  handoff wait 5f0c… --timeout 30s --until accepted
  handoff wait 5f0c… --timeout 10m --cancel-on-timeout`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			if err := a.throughGateway(cmd, "cancel-on-timeout", "tree"); err != nil {
				return err
			}
			if a.through && o.Until == untilReturned {
				return usagef("--until %s does not go through a gateway: closed, accepted and asked do", o.Until)
			}
			ticket, err := a.throughTicket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.wait(cmd.Context(), ticket, o)
		},
	}
	bind(cmd.Flags(), &o)
	a.personFlag(cmd)
	a.gatewayFlag(cmd)
	a.words(cmd, "until", untilWords...)
	return cmd
}

// untilReturned is to wait for the end and for the delivery of the return.
const untilReturned = "returned"

var untilWords = []string{"closed", "accepted", "asked", untilReturned}

func (a *app) wait(ctx context.Context, ticket string, o waitOptions) error {
	s, done, err := a.source(ctx, a.through, a.env("HANDOFF_AGENT"))
	if err != nil {
		return err
	}
	defer done()
	if o.Tree {
		return a.waitTree(ctx, s, ticket, o.limit)
	}
	state, err := waitFor(ctx, s, ticket, o.Chain, o.limit, o.Until)
	if o.Cancel && is[*openError](err) {
		state, err = cancelLate(ctx, s, ticket, state, o.Chain)
	}
	if state.Ticket == "" {
		return err
	}
	if is[*openError](err) && !o.Chain && lifecycle.AwaitsChain(state) {
		err = openReturn(context.WithoutCancel(ctx), s, state)
	}
	if !a.text() {
		return errors.Join(a.valueWithMembers(ctx, s, state), err)
	}
	a.headline(state)
	if o.Until == untilReturned {
		if words := cmp.Or(a.endOfReturn(ctx, s, state), noReturn(state)); words != "" {
			a.printf("return  %s\n", words)
		}
	}
	a.warn(state)
	a.noteChain(state, "wait")
	return err
}

// waitOptions are the flags of wait.
type waitOptions struct {
	Timeout time.Duration `flag:"timeout" doc:"stop waiting after this; 0s looks once (default: no limit)"`
	Until   string        `flag:"until" doc:"closed, accepted, asked, returned"`
	Cancel  bool          `flag:"cancel-on-timeout" doc:"ask for the handoff's end when the timeout passes"`
	Chain   bool          `flag:"chain" doc:"wait for the end of the chain"`
	Tree    bool          `flag:"tree" doc:"wait for everything that follows from the handoff"`

	limit time.Duration // negative is to wait without end
}

// check refuses flags that do not go together.
func (o *waitOptions) check(changed func(flag string) bool) error {
	switch {
	case !slices.Contains(untilWords, o.Until):
		return usagef("--until %s: wait until %s", o.Until, strings.Join(untilWords, ", "))
	case o.Chain && o.Until == untilReturned:
		return usagef("--until %s and --chain do not go together: the return of a handoff is that of its chain", o.Until)
	}
	if o.Tree {
		switch {
		case o.Chain:
			return usagef("--tree and --chain are two things; choose one: --tree waits for the chain, too")
		case o.Until != string(api.UntilClosed):
			return usagef("--tree waits until all is closed; leave out --until")
		case o.Cancel:
			return usagef("--cancel-on-timeout is about one handoff or its chain; handoff cancel --children ends a tree")
		}
	}
	o.limit = -1
	if changed("timeout") {
		o.limit = o.Timeout
	}
	return nil
}

// cancelLate asks for the end of a handoff whose wait has timed out. last is the handoff that its
// chain has come to, if that is waited for.
func cancelLate(ctx context.Context, s *source, ticket string, last protocol.State, chain bool) (protocol.State, error) {
	state, err := s.Cancel(ctx, api.Cancel{Ticket: last.Ticket, Reason: "not done when the wait for it timed out", Children: chain})
	if err == nil && chain {
		state, err = s.LastOfChain(ctx, ticket)
	}
	if err == nil {
		err = failed(state)
	}
	return state, err
}

// waitFor waits for a handoff, or for its chain, up to limit (negative: without end) and returns the
// error for the exit code. The state it returns is the last one read, if any.
func waitFor(ctx context.Context, s *source, ticket string, chain bool, limit time.Duration, until string) (protocol.State, error) {
	whole := ctx
	ready := func(state protocol.State) bool {
		ready, _ := api.Until(until).Ready(state)
		return ready && !(chain && lifecycle.GoesOn(state))
	}
	if until == untilReturned {
		ready = s.b.Returned(ctx)
	}
	switch {
	case limit == 0: // one look needs its time too: that of the engine
		state, err := s.status(ctx, ticket, chain)
		if err == nil && !ready(state) {
			err = &openError{state: state}
		}
		return finish(state, err)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	var state protocol.State
	var err error
	if until == untilReturned {
		state, err = s.session.FollowReturn(ctx, ticket, func(state protocol.State) error { return s.see(ctx, state) })
	} else {
		state, err = s.follow(ctx, ticket, api.Until(until), chain)
	}
	switch {
	case err != nil && context.Cause(ctx) == errWaited && state.Ticket == "": // too short for one look
		return waitFor(whole, s, ticket, chain, 0, until)
	case err != nil && context.Cause(ctx) == errWaited:
		err = &openError{state: state}
	case err != nil && errors.Is(ctx.Err(), context.Canceled) && (!state.Closed || chain && lifecycle.GoesOn(state)):
		again, cancel := ticket, ticket
		if chain {
			again, cancel = ticket+" --chain", ticket+" --children"
		}
		err = waitInterrupted(again, cancel)
	}
	return finish(state, err)
}

// errWaited distinguishes our own timeout from the engine's.
var errWaited = errors.New("the wait is over")

// finish adds the error for the exit code of a closed handoff. Accepted is success enough for a
// wait for that; closed without success is none.
func finish(s protocol.State, err error) (protocol.State, error) {
	if err == nil && s.Closed {
		err = failed(s)
	}
	return s, err
}

// noReturn explains why a closed handoff has no return to wait for.
func noReturn(s protocol.State) string {
	switch {
	case !s.Closed || s.ReturnExpected:
		return ""
	case s.ReturnOf != "":
		return "none: it is itself the return of " + s.ReturnOf
	}
	return fmt.Sprintf("none: %s expects none of a %s handoff (submit --return asks for one)", s.Source, s.Type)
}

// endOfReturn describes the fate of the return of a closed handoff.
func (a *app) endOfReturn(ctx context.Context, of *source, s protocol.State) string {
	if !s.Closed || s.ReturnTicket == "" || s.ReturnedAt.IsZero() {
		return phrase(explain.Return(s))
	}
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	ret, err := of.Status(ctx, s.ReturnTicket)
	if err != nil || ret.Fence != 0 || !ret.Closed || ret.Outcome == protocol.OutcomeSuccess || ret.Outcome == protocol.OutcomePartial {
		return phrase(explain.Return(s))
	}
	return fmt.Sprintf("could not be delivered to %s: %s; handoff result %s --return prints it", s.Source, explain.Ending(ret), s.Ticket)
}

// openTreeError reports open handoffs among those that follow from one.
type openTreeError struct {
	ticket string
	open   []dossier.Reference
}

func (e *openTreeError) Error() string {
	if len(e.open) == 1 {
		return fmt.Sprintf("1 handoff of the tree of %s is still open", e.ticket)
	}
	return fmt.Sprintf("%s of the tree of %s are still open", explain.Count(len(e.open), "handoff"), e.ticket)
}

// waitTree waits for everything that follows from a handoff, and prints the end of its chain.
func (a *app) waitTree(ctx context.Context, s *source, ticket string, limit time.Duration) error {
	last, open, err := a.awaitTree(ctx, s, ticket, limit)
	if last.Ticket == "" {
		return err
	}
	if !a.text() {
		v, viewErr := a.viewOf(context.WithoutCancel(ctx), s, last)
		return errors.Join(viewErr, a.value(struct {
			dossier.StateView
			Open []dossier.Reference `json:"open"`
		}{v, orEmpty(open)}), err)
	}
	a.headline(last)
	for _, handoff := range open[:min(len(open), membersShown)] {
		a.notef("handoff: still open: %s\n", handoff)
	}
	if more := len(open) - membersShown; more > 0 {
		a.notef("handoff: and %d more: handoff tree %s\n", more, ticket)
	}
	a.warn(last)
	return err
}

// awaitTree waits up to limit (negative: without end). It returns the handoff that the chain has
// come to, and the open handoffs.
func (a *app) awaitTree(ctx context.Context, s *source, ticket string, limit time.Duration) (protocol.State, []dossier.Reference, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	if limit != 0 {
		if err := awaitBelow(ctx, s, ticket); err != nil && ctx.Err() == nil {
			return protocol.State{}, nil, err
		}
	}
	look, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	last, err := s.LastOfChain(look, ticket)
	if err != nil {
		return protocol.State{}, nil, a.gaveUp(look, err)
	}
	open, err := dossier.OpenBelow(look, s, ticket)
	switch {
	case err != nil:
		return last, nil, a.gaveUp(look, err)
	case len(open) == 0:
		return last, nil, failed(last)
	case errors.Is(ctx.Err(), context.Canceled):
		return last, open, waitInterrupted(ticket+" --tree", ticket+" --children")
	}
	return last, open, &openTreeError{ticket, open}
}

// promisedPause is how often a handoff is looked for that its writer, or a supervisor, is yet to
// submit.
const promisedPause = 200 * time.Millisecond

// awaitBelow waits until a handoff is closed, and everything that follows from it: one after
// another, since all of them are waited for.
func awaitBelow(ctx context.Context, s *source, ticket string) error {
	root, err := s.follow(ctx, ticket, api.UntilClosed, false)
	if err != nil {
		return err
	}
	for left := dossier.ChildrenOf(root); len(left) > 0; {
		child := left[len(left)-1]
		state, err := s.follow(ctx, child.Ticket, api.UntilClosed, false)
		switch missing := hasCode(protocol.CodeNotFound)(err); {
		case missing && !child.Gone(time.Now()):
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(promisedPause):
			}
			continue
		case err != nil && !missing:
			return err
		}
		left = append(left[:len(left)-1], dossier.ChildrenOf(state)...)
	}
	return nil
}

// timeoutEnv is the environment's --timeout.
const timeoutEnv = "HANDOFF_TIMEOUT"

// resolveTimeout returns how long a command retries a request to the engine.
func (c connection) resolveTimeout(env func(string) string) time.Duration {
	fromEnv, err := parseDuration(env(timeoutEnv))
	if err != nil { // check refuses it, before anything is done
		fromEnv = 0
	}
	return cmp.Or(c.timeout, fromEnv, broker.TimeoutDefault)
}

// checkTimeout refuses a timeout out of its limits.
func (c connection) checkTimeout(env func(string) string, given bool) error {
	d, name := c.timeout, "--timeout"
	if !given {
		text := env(timeoutEnv)
		if text == "" {
			return nil
		}
		var err error
		if d, err = parseDuration(text); err != nil {
			return usagef("$%s: %v", timeoutEnv, err)
		}
		name = "$" + timeoutEnv
	}
	if d < broker.TimeoutMin || d > broker.TimeoutMax {
		return usagef("%s %s: give %s to %s", name, explain.Duration(d), explain.Duration(broker.TimeoutMin), explain.Duration(broker.TimeoutMax))
	}
	return nil
}

// timeout is how long whatever this command asks of the engine is tried.
func (a *app) timeout() time.Duration { return a.conn.resolveTimeout(a.env) }

// errPatience distinguishes the end of our patience from other deadlines.
var errPatience = errors.New("the patience with the engine is over")

// asking gives something short that is asked of the engine its deadline, from now on.
func (a *app) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.timeout(), errPatience)
}

// ask does something short within one deadline.
func (a *app) ask(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := a.asking(ctx)
	defer cancel()
	return a.gaveUp(ctx, do(ctx))
}

// gaveUp adds the time waited for an answer to an error of ours at the deadline.
func (a *app) gaveUp(ctx context.Context, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errPatience) || is[*broker.SilenceError](err) || is[*protocol.Error](err) {
		return err
	}
	return &broker.SilenceError{After: a.timeout(), Last: fmt.Errorf("at %s: %w", a.conn.resolve(a.env).where(), err)}
}

// refusedWithin bounds the tries of an engine of this machine that refuses connections, if no timeout
// is given: less than silentFor.
const refusedWithin = 1500 * time.Millisecond

// silentFor is how long nothing may answer before a person is informed.
const silentFor = 2 * time.Second

// tellSilence prints on stderr, once, that there is no answer so far, until the function that it
// returns is called.
func (a *app) tellSilence(who string) (stop func()) {
	if !a.text() || a.waiting {
		return func() {}
	}
	var mu sync.Mutex
	over := false
	timer := time.AfterFunc(silentFor, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			a.notef("handoff: no answer from %s so far; trying for %s (--timeout)\n", who, explain.Duration(a.timeout()))
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}

// speakHelp is the part about the wait in the help of every command that waits.
const speakHelp = `A wait goes on for an approval, for an answer, and for an absent agent. If every agent
refused the handoff or failed, or a budget is spent, only a person can help: the wait
ends with exit code 12, or goes on with --for-person. On a terminal it prints a line
whenever the reason for waiting changes. Through a gateway it does neither.`

func (a *app) personFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.people, "for-person", false, "wait on if every agent refused or failed, or a budget is spent")
}

// follow is Wait, or WaitChain, that calls see with each state.
func (s *source) follow(ctx context.Context, ticket string, until api.Until, chain bool) (protocol.State, error) {
	switch {
	case s.session != nil:
		return s.session.Follow(ctx, ticket, until, chain, func(state protocol.State) error { return s.see(ctx, state) })
	case chain:
		return s.WaitChain(ctx, ticket, until)
	}
	return s.Wait(ctx, ticket, until)
}

// speaker prints each change of the event that a handoff waits for.
type speaker struct {
	a    *app
	b    *broker.Broker
	last string
}

// see prints a change of the event that the handoff waits for, and returns an error if it is in an
// impasse, unless --for-person is set.
func (w *speaker) see(ctx context.Context, s protocol.State) error {
	if s.Closed {
		return nil
	}
	if text := s.Ticket + " waits for " + phrase(explain.WaitingFor(s)); w.a.speaks && text != w.last {
		w.last = text
		w.a.notef("handoff: %s\n", w.a.shortens(text)(text))
		w.a.whyWaiting(ctx, w.b, s)
	}
	if w.a.people {
		return nil
	}
	return api.CheckImpasse(s)
}

// chainHelp explains --chain.
const chainHelp = `--chain means the end of the chain: of the handoffs that follow from this one by goto.`

func chainFlag(cmd *cobra.Command, chain *bool, what string) {
	cmd.Flags().BoolVar(chain, "chain", false, what)
}

// noteChain prints on stderr how to follow the chain of a handoff that was handed on.
func (a *app) noteChain(s protocol.State, command string) {
	if next, goesOn := lifecycle.NextInChain(s); goesOn && a.text() {
		a.notef("handoff: it continues as %s; for the whole chain: handoff %s %s --chain\n", next, command, s.Ticket)
	}
}

// openReturn is the error of a return that waits for the end of a chain. It names the handoff
// that the chain has come to.
func openReturn(ctx context.Context, s *source, state protocol.State) error {
	last, err := s.LastOfChain(ctx, state.Ticket)
	if err != nil {
		return err
	}
	return &openError{state: last, returnOf: state.Ticket}
}
