package httpgateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	headerLastEvent = "Last-Event-ID"
	// pingInterval is the interval of comments on a stream, so that either end misses the other.
	pingInterval = 15 * time.Second
	// eventTimeout is how long a client may take for one message.
	eventTimeout = 10 * time.Second
	// retryMS is how long a client waits until it connects again.
	retryMS = 1000
	// viewPause is the pause between hints for a view of the page.
	viewPause = 2 * time.Second
)

// change is one entry of the ledger on a stream.
type change struct {
	Ticket   string               `json:"ticket"`
	Seq      uint64               `json:"seq"`
	At       protocol.Time        `json:"at"`
	Events   []protocol.EventType `json:"events"`
	Sentence string               `json:"sentence"` // who did it, and the details
	Phase    protocol.Phase       `json:"phase"`
	Agent    string               `json:"agent"`
	Closed   bool                 `json:"closed"`
	Outcome  protocol.Outcome     `json:"outcome,omitempty"`
}

func changeOf(c protocol.Change) change {
	s := c.Record.State
	v := change{Ticket: s.Ticket, Seq: c.Seq, At: c.At, Phase: s.Phase, Agent: s.Agent, Closed: s.Closed, Outcome: s.Outcome}
	var words []string
	for _, e := range c.Record.Events {
		v.Events = append(v.Events, e.EventType())
		by, detail := explain.Event(e)
		words = append(words, explain.Join(strings.ReplaceAll(string(e.EventType()), "_", " ")+" by "+explain.By(by), detail))
	}
	v.Sentence = strings.Join(words, "; ")
	return v
}

// ended is the last message of a stream.
type ended struct {
	Ticket  string           `json:"ticket"`
	Outcome protocol.Outcome `json:"outcome"`
}

// stream writes messages of server-sent events.
type stream struct {
	last string // Last-Event-ID
	stop context.CancelFunc

	mu   sync.Mutex
	w    http.ResponseWriter
	open bool
}

// send writes one message, or a comment if it has no event. The first one begins the answer.
func (s *stream) send(id, event string, data any) error {
	text := []byte(": \n\n")
	if event != "" {
		body, err := protocol.Marshal(data)
		if err != nil {
			return err
		}
		text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, body)
		if id != "" {
			text = fmt.Appendf(nil, "id: %s\n%s", id, text)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	control := http.NewResponseController(s.w)
	_ = control.SetWriteDeadline(time.Now().Add(eventTimeout)) // a recorder of tests has none
	if !s.open {
		s.open = true
		header := s.w.Header()
		header.Set("Content-Type", "text/event-stream")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Accel-Buffering", "no")
		s.w.WriteHeader(http.StatusOK)
		fmt.Fprintf(s.w, "retry: %d\n\n", retryMS)
	}
	_, err := s.w.Write(text)
	if err = errors.Join(err, control.Flush()); err != nil {
		s.stop()
	}
	return err
}

// stream answers with the stream of a route, and pings it between messages. A token that was revoked,
// or a session that is over, ends its streams.
func (g *Gateway) stream(w http.ResponseWriter, r *http.Request, caller api.Caller, who identify, rt *route) error {
	request, _, err := requestOf(rt, r, nil)
	if err != nil {
		return err
	}
	release, err := g.waits.take(caller.Name)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.waiting, cancel)()
	s := &stream{w: w, last: r.Header.Get(headerLastEvent), stop: cancel}
	var pings sync.WaitGroup
	pings.Go(func() {
		tick := time.NewTicker(g.ping)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if _, err := who(r); err != nil || s.send("", "", nil) != nil {
					cancel()
				}
			}
		}
	})
	err = rt.stream(ctx, g.api.As(caller), request, s)
	cancel()
	pings.Wait()
	switch {
	case err == nil || r.Context().Err() != nil:
		g.answered.Add(1)
	case s.open:
		g.cfg.Log.Debug("stream ended", "caller", caller.Name, "route", r.Pattern, "err", err)
	default:
		return err
	}
	return nil
}

type changesRequest struct {
	Ticket string `json:"ticket"`
	Chain  bool   `json:"chain,omitempty"`
}

// changes streams the changes of a handoff, from the place that Last-Event-ID names on.
func changes(ctx context.Context, session *api.Session, body []byte, s *stream) error {
	var request changesRequest
	if err := protocol.DecodeStrict(body, "request", requestMin, &request); err != nil {
		return err
	}
	watch := api.Watch{Ticket: request.Ticket, Chain: request.Chain}
	if s.last != "" {
		ticket, seq, _ := strings.Cut(s.last, ":")
		n, err := strconv.ParseUint(seq, 10, 64)
		if err != nil {
			return malformed(headerLastEvent, "is no id of this stream: TICKET:SEQUENCE")
		}
		watch.After, watch.AfterSeq = ticket, n
	}
	state, err := session.Changes(ctx, watch, func(c protocol.Change) error {
		return s.send(fmt.Sprintf("%s:%d", c.Record.State.Ticket, c.Seq), "change", changeOf(c))
	})
	if err != nil {
		return err
	}
	return s.send("", "end", ended{state.Ticket, state.Outcome})
}

// hints streams hints about all handoffs that the caller may see. With a pause a hint is sent at once, and
// then at most one in each pause, for all changes in it: a view is read again as a whole.
func hints(pause time.Duration) func(context.Context, *api.Session, []byte, *stream) error {
	return func(ctx context.Context, session *api.Session, body []byte, s *stream) error {
		var filter api.HintFilter
		if err := protocol.DecodeStrict(body, "request", requestMin, &filter); err != nil {
			return err
		}
		hints, stop, err := session.Hints(ctx, filter)
		if err != nil {
			return err
		}
		defer stop()
		if err := s.send("", "", nil); err != nil { // from here on no change is missed
			return err
		}
		var later *api.Hint // the last of a pause
		var paused <-chan time.Time
		for {
			var hint *api.Hint
			select {
			case <-ctx.Done():
				return ctx.Err()
			case next, ok := <-hints:
				if !ok {
					return nil
				}
				hint = &next
			case <-paused:
				hint, later, paused = later, nil, nil
			}
			switch {
			case hint == nil:
			case paused != nil:
				later = hint
			default:
				if err := s.send("", "hint", hint); err != nil {
					return err
				}
				if pause > 0 {
					paused = time.After(pause)
				}
			}
		}
	}
}
