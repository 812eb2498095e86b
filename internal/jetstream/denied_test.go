package jetstream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

func TestDenials(t *testing.T) {
	const publish = `nats: permissions violation: Permissions Violation for Publish to "handoff.ledger.x"`
	nc, began := &nats.Conn{Opts: nats.Options{User: "ann"}}, time.Now()
	for name, c := range map[string]struct {
		noted, prefix string
		at            time.Time
		err           error
		says          string // "": the error as it was
	}{
		"a time-out of what was denied":    {publish, "", began, context.DeadlineExceeded, "user ann may not publish to handoff.ledger.x"},
		"the library's time-out":           {publish, "", began, nats.ErrTimeout, "handoff.ledger.x"},
		"what was denied before":           {publish, "", began.Add(-time.Second), nats.ErrTimeout, ""},
		"another error":                    {publish, "", began, nats.ErrNoResponders, ""},
		"no error":                         {publish, "", began, nil, ""},
		"an inbox, however long ago":       {`Permissions Violation for Subscription to "_INBOX.a.*" (sid "1")`, "", began.Add(-time.Hour), nats.ErrTimeout, "may not subscribe to _INBOX.a.*"},
		"an inbox of its own":              {`Permissions Violation for Subscription to "_INBOX_ann.a.*"`, "_INBOX_ann", began, nats.ErrTimeout, "--inbox-prefix"},
		"a subscription to something else": {`Permissions Violation for Subscription to "handoff.feed.x"`, "", began, nats.ErrTimeout, ""},
		"what is only tried":               {`Permissions Violation for Publish to "` + removeSubjects[0] + `"`, "", began, nats.ErrTimeout, ""},
		"what is asked beside a question":  {`Permissions Violation for Publish to "` + NodeSubject + `"`, "", began, nats.ErrTimeout, ""},
		"what is not understood":           {`Permissions Violation`, "", began, nats.ErrTimeout, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var d denials
			d.record(c.noted, c.prefix, c.at)
			err := d.explain(nc, began, c.err)
			switch {
			case c.says == "" && err != c.err: //nolint:errorlint // the very same
				t.Errorf("it became %v", err)
			case c.says != "" && (!errors.Is(err, broker.ErrNotAllowed) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("it says %v", err)
			}
		})
	}
	var many denials
	for i := range 3 * deniedMax {
		many.record(strings.Replace(publish, "x", strings.Repeat("x", i+1), 1), "", began)
	}
	if len(many.publish) > deniedMax {
		t.Errorf("%d are remembered", len(many.publish))
	}
}
