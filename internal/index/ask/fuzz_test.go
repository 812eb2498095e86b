package ask

import (
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// FuzzQuestions reads anything as each question: it is refused with a reason, or is
// one that may be asked.
func FuzzQuestions(f *testing.F) {
	for _, question := range []string{
		`{}`, ``, `{"filter":{"open":true,"text":"login fo*"},"sort":"newest","limit":10}`, `{"by":["agent","outcome"]}`,
		`{"ticket":"6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`, `{"filter":{"since":"2026-01-01T00:00:00Z"}}`, `{"filter":{"text":"\u0000\" OR *"}}`, `[`, `{"wait_ms":-1}`,
	} {
		f.Add([]byte(question))
	}
	f.Fuzz(func(t *testing.T, question []byte) {
		for _, check := range []func() error{
			func() error { return readAs(question, func(q ListQuery) error { return q.Validate() }) },
			func() error { return readAs(question, func(q CountQuery) error { return q.Validate() }) },
			func() error {
				return readAs(question, func(q FamilyQuery) error { _, err := protocol.ParseTicket(q.Ticket); return err })
			},
			func() error { return readAs(question, func(AheadQuery) error { return nil }) },
			func() error { return readAs(question, func(FiguresQuery) error { return nil }) },
			func() error { return readAs(question, func(PositionQuery) error { return nil }) },
		} {
			err := check()
			var refused *protocol.Error
			if err != nil && !errors.As(err, &refused) {
				t.Errorf("%s: %T: %v", question, err, err)
			}
		}
	})
}

func readAs[Q any](question []byte, check func(Q) error) error {
	var q Q
	if err := decodeQuestion(question, &q); err != nil {
		return err
	}
	return check(q)
}
