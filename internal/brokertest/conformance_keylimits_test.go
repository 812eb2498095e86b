package brokertest

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// keyUses: one of two writers changes the use of a key, whatever its characters are, and the list has it.
func keyUses(k *kit) {
	key := "model:gpt-4.1/turbo * > " + strings.ToLower(protocol.NewTicket())
	use, rev, err := k.KeyUse(k.ctx, key)
	k.must(err)
	if !reflect.DeepEqual(use, protocol.KeyUse{}) || rev != 0 {
		k.Errorf("of a new key: %+v at %d", use, rev)
	}
	at := k.Now().UTC().Truncate(time.Millisecond)
	taken := protocol.KeyUse{Key: key, Places: map[string]protocol.KeyPlace{protocol.NewTicket(): {Slot: protocol.Slot{Holder: "h", Offer: 7, At: at}, Agent: "a"}},
		Starts: []int64{at.UnixMilli()}, SpanMS: 60_000, Waiting: []protocol.KeyWait{{Ticket: protocol.NewTicket(), Agent: "b", Rate: 1, PerMS: 60_000}}}
	first := k.wins(func() error { _, err := k.PutKeyUse(k.ctx, key, taken, 0); return err })
	use, rev, err = k.KeyUse(k.ctx, key)
	k.must(err)
	if first != 1 || rev == 0 || !reflect.DeepEqual(use, taken) {
		k.Errorf("%d of 4 wrote; there is %+v at %d, want %+v", first, use, rev, taken)
	}
	_, err = k.PutKeyUse(k.ctx, key, protocol.KeyUse{}, rev+1)
	k.wantErr(err, broker.ErrConflict)
	all, err := k.KeyUses(k.ctx)
	k.must(err)
	if !slices.ContainsFunc(all, func(u protocol.KeyUse) bool { return u.Key == key }) {
		k.Errorf("not among %d listed", len(all))
	}
	next, err := k.PutKeyUse(k.ctx, key, protocol.KeyUse{}, rev)
	k.must(err)
	use, again, err := k.KeyUse(k.ctx, key)
	k.must(err)
	if len(use.Places) != 0 || again <= rev || again != next {
		k.Errorf("%+v at %d, said to be %d, after %d", use, again, next, rev)
	}
}
