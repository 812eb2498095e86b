package jetstream

import (
	"context"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// straysKept is how many subjects of foreign messages are named, per stream.
	straysKept = 100
	// straysRead is how many of the directory entries that a watcher left out are read; the others
	// count as foreign without a read.
	straysRead = 1_000
)

// Strays are foreign messages in a stream: on an invalid subject, or an unreadable entry of the
// directory.
type Strays struct {
	Stream   string
	N        int      // subjects that have any
	Subjects []string // the first 100
}

// Strays finds the foreign messages in all streams but the ledger and the object store. d is the
// directory of this process: its entries need not be read.
func (j *Engine) Strays(ctx context.Context, d *lifecycle.Directory) ([]Strays, error) {
	type search struct {
		stream, filter string
		ours           func(subject string) bool // otherwise it is read
		read           func(name string, body []byte) error
	}
	var all []Strays
	var searches []search
	for p := range j.partitions() {
		searches = append(searches, search{workStreams[p], ">", isOfferSubject, nil}, search{timerStreams[p], ">", isWakeUpSubject, nil})
	}
	for _, in := range append(searches, []search{
		{agentStream, agentPrefix + ">", func(s string) bool {
			return hasKey(d.Agents, strings.TrimPrefix(s, agentPrefix)) || isRecord(s, d)
		}, func(name string, body []byte) (err error) {
			if schedule, is := lastToken(name, schedulePrefix); is {
				_, err = broker.ScheduleIn(schedule, body)
			} else if rule, is := lastToken(name, rulePrefix); is {
				_, err = broker.RuleIn(rule, body)
			} else if name == fleetSubject {
				_, err = fleetIn(body)
			} else {
				_, err = profileIn(strings.TrimPrefix(name, agentPrefix), body)
			}
			return err
		}},
		{holderStream, "$KV." + HolderBucket + ".>", func(s string) bool {
			return s == probeSubject || hasKey(d.Holders, strings.TrimPrefix(s, holderPrefix)) || isOfAgent(s, slotsPrefix) || isOfAgent(s, healthPrefix) || strings.HasPrefix(s, limitPrefix)
		}, func(name string, body []byte) error {
			_, err := holderIn(strings.TrimPrefix(name, holderPrefix), body)
			return err
		}},
	}...) {
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
		rest, _, is := cutPrefix(subject, workPrefix)
		return is && rest == sentinel
	}
	_, err := protocol.ParseTicket(key.Ticket)
	return err == nil && protocol.CheckID("agent", key.Agent) == nil
}

func isWakeUpSubject(subject string) bool {
	if rest, _, ok := cutPrefix(subject, timerPrefix); ok {
		subject = duePrefix + rest
	}
	ticket, _, ok := parseDueSubject(subject)
	_, err := protocol.ParseTicket(ticket)
	return ok && err == nil
}

func isOfAgent(subject, prefix string) bool {
	agent, ok := strings.CutPrefix(subject, prefix)
	return ok && protocol.CheckID("agent", agent) == nil
}

// isUnreadable reports whether a subject has an unreadable entry, rather than the marker of a
// removed one.
func (j *Engine) isUnreadable(ctx context.Context, stream, subject string, read func(string, []byte) error) (bool, error) {
	body, _, err := j.lastEntry(ctx, stream, subject)
	return err == nil && body != nil && read(subject, body) != nil, err
}

// eachSubject calls fn with the subjects of a stream, 100,000 per answer. A missing stream has
// none.
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
