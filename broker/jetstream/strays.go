package jetstream

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// straysKept is how many subjects of strays are named, for each stream.
	straysKept = 100
	// straysRead is how many entries of the directory are read that a watcher left out;
	// the others count as strays unread.
	straysRead = 1_000
)

// Strays are messages in a stream that no part of Handoff has put there: at a subject
// that is none, or an entry of the directory that can't be read.
type Strays struct {
	Stream   string
	N        int      // subjects with one or more of them
	Subjects []string // the first 100
}

// Strays finds the strays in all streams but the ledger and the object store. d is the
// directory as this process has it: what is in it need not be read.
func (j *Engine) Strays(ctx context.Context, d *lifecycle.Directory) ([]Strays, error) {
	var all []Strays
	for _, in := range []struct {
		stream, filter string
		ours           func(subject string) bool // else it is read
		read           func(name string, body []byte) error
	}{
		{WorkStream, workPrefix + ">", isOfferSubject, nil},
		{TimerStream, ">", isWakeUpSubject, nil},
		{agentStream, agentPrefix + ">", func(s string) bool { return hasKey(d.Agents, strings.TrimPrefix(s, agentPrefix)) }, func(name string, body []byte) (err error) {
			if name == fleetSubject {
				_, err = fleetIn(body)
			} else {
				_, err = profileIn(strings.TrimPrefix(name, agentPrefix), body)
			}
			return err
		}},
		{holderStream, "$KV." + HolderBucket + ".>", func(s string) bool {
			return s == probeSubject || hasKey(d.Holders, strings.TrimPrefix(s, holderPrefix)) || isSlotsSubject(s) || isHealthSubject(s)
		}, func(name string, body []byte) error {
			_, err := holderIn(strings.TrimPrefix(name, holderPrefix), body)
			return err
		}},
	} {
		s := Strays{Stream: in.stream}
		reads := 0
		err := j.eachSubject(ctx, in.stream, in.filter, func(subject string) error {
			if in.ours(subject) {
				return nil
			}
			if reads++; in.read != nil && reads <= straysRead {
				if junk, err := j.isUnreadable(ctx, in.stream, subject, in.read); err != nil || !junk {
					return err
				}
			}
			if s.N++; len(s.Subjects) < straysKept {
				s.Subjects = append(s.Subjects, subject)
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
		if slices.Sort(s.Subjects); s.N > 0 {
			all = append(all, s)
		}
	}
	return all, nil
}

func hasKey[V any](of map[string]V, key string) bool {
	_, ok := of[key]
	return ok
}

func isOfferSubject(subject string) bool {
	key, ok := parseWorkSubject(subject)
	if !ok {
		return subject == sentinelSubject
	}
	_, err := protocol.ParseTicket(key.Ticket)
	return err == nil && protocol.CheckID("agent", key.Agent) == nil
}

func isWakeUpSubject(subject string) bool {
	if rest, ok := strings.CutPrefix(subject, timerPrefix); ok {
		subject = duePrefix + rest
	}
	ticket, _, ok := parseDueSubject(subject)
	_, err := protocol.ParseTicket(ticket)
	return ok && err == nil
}

func isSlotsSubject(subject string) bool {
	agent, ok := strings.CutPrefix(subject, slotsPrefix)
	return ok && protocol.CheckID("agent", agent) == nil
}

func isHealthSubject(subject string) bool {
	agent, ok := strings.CutPrefix(subject, healthPrefix)
	return ok && protocol.CheckID("agent", agent) == nil
}

// isUnreadable tells whether what stands at a subject is an entry that can't be read, and
// not the marker of one that went.
func (j *Engine) isUnreadable(ctx context.Context, stream, subject string, read func(string, []byte) error) (bool, error) {
	msg, err := j.getMessage(ctx, stream, getRequest{LastFor: subject})
	if errors.Is(err, broker.ErrNotFound) {
		return false, nil
	}
	if err != nil || msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "" {
		return false, err
	}
	return read(subject, msg.Data) != nil, nil
}

// eachSubject calls fn with the subjects of a stream, 100,000 in one answer. A stream
// that is not there has none.
func (j *Engine) eachSubject(ctx context.Context, stream, filter string, fn func(subject string) error) error {
	for offset := 0; ; {
		var page streamCount
		err := j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
			page, err = j.countSubjects(ctx, stream, filter, offset)
			return err
		})
		switch {
		case hasCode(err, codeNoStream):
			return nil
		case err != nil:
			return err
		}
		for subject := range page.State.Subjects {
			if err := fn(subject); err != nil {
				return err
			}
		}
		offset += len(page.State.Subjects)
		if len(page.State.Subjects) == 0 || offset >= page.Total {
			return nil
		}
	}
}
