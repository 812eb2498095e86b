package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// deniedMax is how many denied subjects are remembered.
const deniedMax = 256

// denials remember what the engine did not let us do. It does not answer what it
// denies but says so beside, so that to who asked it looks like a time-out: a
// request that got no answer is judged by what was denied since it began. That is
// exact where one thing is done at a time; beside others it may name the denial of
// another request, and a user of whom anything is denied lacks what its role needs.
type denials struct {
	mu      sync.Mutex
	publish map[string]time.Time // by subject: the latest
	inbox   string               // the subject for answers that we may not subscribe to
	watches map[*watch]bool
}

// watch is called when we may not publish to a subject that begins with its prefix, or
// not subscribe to what answers come on.
type watch struct {
	prefix string
	called func()
}

// watch adds one, until the function that it returns is called.
func (d *denials) watch(prefix string, called func()) (stop func()) {
	w := &watch{prefix, called}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watches == nil {
		d.watches = map[*watch]bool{}
	}
	d.watches[w] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watches, w)
	}
}

// follow has denials of a connection noted here, too, until the function that it
// returns puts back what listened before.
func (d *denials) follow(nc *nats.Conn) (stop func()) {
	others := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			d.record(err.Error(), nc.Opts.InboxPrefix, time.Now())
		}
		if others != nil {
			others(nc, sub, err)
		}
	})
	return func() { nc.SetErrorHandler(others) }
}

var violation = regexp.MustCompile(`(Publish|Subscription) to "?([^\s"]+)`)

func (d *denials) record(violates, inboxPrefix string, now time.Time) {
	found := violation.FindStringSubmatch(violates)
	if found == nil || found[2] == removeSubject || found[2] == NodeSubject { // see mayRemove and AskNode: they only try
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		for w := range d.watches {
			if d.inbox != "" || found[1] == "Publish" && strings.HasPrefix(found[2], w.prefix) {
				w.called()
			}
		}
	}()
	switch {
	case found[1] == "Publish" && (d.publish == nil || len(d.publish) >= deniedMax):
		d.publish = map[string]time.Time{found[2]: now}
	case found[1] == "Publish":
		d.publish[found[2]] = now
	case strings.HasPrefix(found[2], cmp.Or(inboxPrefix, "_INBOX")+"."):
		d.inbox = found[2]
	}
}

// explain returns err, or what is behind it: a request that began at that time got
// no answer because it was denied.
func (d *denials) explain(nc *nats.Conn, began time.Time, err error) error {
	if err == nil || !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inbox != "" {
		return fmt.Errorf("%w: %s may not subscribe to %s, where answers come; name its own prefix with --inbox-prefix ($NATS_INBOX_PREFIX), or let it: docs/operations/security.md",
			broker.ErrNotAllowed, userOf(nc), d.inbox)
	}
	for subject, at := range d.publish {
		if !at.Before(began) {
			return fmt.Errorf("%w: %s may not publish to %s; what each role may is in docs/operations/security.md", broker.ErrNotAllowed, userOf(nc), subject)
		}
	}
	return err
}

// watchWhile does op, which is cut short when we may not publish to a subject that begins with
// the prefix. It is for what has long to wait; all else is judged when its time is over.
func (d *denials) watchWhile(ctx context.Context, nc *nats.Conn, prefix string, op func(context.Context) error) error {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.watch(prefix, cancel)()
	began := time.Now()
	err := op(asking)
	if asking.Err() != nil && ctx.Err() == nil && err != nil {
		err = context.DeadlineExceeded
	}
	return d.explain(nc, began, err)
}

// MayAsk tells whether the server lets a connection ask on a subject, and hear answers:
// ErrNotAllowed if not. It publishes an empty message there, without a reply, which
// the answering process has to ignore. It takes one round trip, TimeoutDefault at most.
func MayAsk(ctx context.Context, nc *nats.Conn, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, broker.TimeoutDefault)
	defer cancel()
	var d denials
	defer d.follow(nc)()
	heard := make(chan struct{})
	defer d.watch("", sync.OnceFunc(func() { close(heard) }))()
	before, began := nc.LastError(), time.Now()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }()
		err = nc.Publish(subject, nil)
	}
	if err == nil {
		err = nc.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	// The word of the server is known before the answer to the flush, and told to
	// those who listen a little later.
	if denied := nc.LastError(); denied == before || !errors.Is(denied, nats.ErrPermissionViolation) { //nolint:errorlint // the same value
		return nil
	}
	select {
	case <-heard:
	case <-time.After(tryTimeout):
	}
	return d.explain(nc, began, context.DeadlineExceeded)
}

// userOf names who we are, as far as it can be shown.
func userOf(nc *nats.Conn) string {
	name := nc.Opts.User
	if u, err := url.Parse(nc.ConnectedUrl()); err == nil && u.User != nil {
		name = cmp.Or(name, u.User.Username())
	}
	if name = cmp.Or(name, nc.Opts.Nkey); name == "" {
		return "this user"
	}
	return "user " + name
}
