package brokertest

import (
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var recordCases = []conformanceCase{
	{"a record is changed by one of two who read it", recordCAS},
	{"the directory shows schedules, and not their packages as agents", recordSchedules},
}

func recordCAS(k *kit) {
	key := broker.RecordKey{Kind: broker.PackageRecord, Name: k.agent()}
	body, rev, err := k.Record(k.ctx, key)
	if k.must(err); body != nil || rev != 0 {
		k.Fatalf("%q at %d", body, rev)
	}
	k.must(k.RemoveRecord(k.ctx, broker.RecordKey{Kind: broker.PackageRecord, Name: k.agent()}))
	first, err := k.PutRecord(k.ctx, key, []byte(`{"n":1}`), 0)
	k.must(err)
	_, err = k.PutRecord(k.ctx, key, []byte(`{"n":2}`), 0)
	k.wantErr(err, broker.ErrConflict)
	k.must(k.RemoveRecord(k.ctx, key))
	_, err = k.PutRecord(k.ctx, key, []byte(`{"n":3}`), first)
	k.wantErr(err, broker.ErrConflict)
	body, rev, err = k.Record(k.ctx, key)
	if k.must(err); body != nil || rev == 0 {
		k.Fatalf("%q at %d after it was removed", body, rev)
	}
	next, err := k.PutRecord(k.ctx, key, []byte(`{"n":4}`), rev)
	k.must(err)
	body, rev, err = k.Record(k.ctx, key)
	if k.must(err); string(body) != `{"n":4}` || rev != next {
		k.Errorf("%s at %d, put at %d", body, rev, next)
	}
	for _, name := range []string{"", "*", ">", "a.b"} {
		if _, _, err := k.Record(k.ctx, broker.RecordKey{Kind: broker.ScheduleRecord, Name: name}); err == nil {
			k.Errorf("a record may be called %q", name)
		}
	}
	_, err = k.PutRecord(k.ctx, key, make([]byte, broker.RecordBytesMax+1), rev)
	k.wantErr(err, &protocol.Error{Code: protocol.CodeTooLarge})
}

func recordSchedules(k *kit) {
	s := protocol.Schedule{Name: k.agent(), Cron: "0 9 * * *", DecidedTo: time.Unix(0, 0).UTC()}
	body, err := json.Marshal(s)
	k.must(err)
	_, err = k.PutRecord(k.ctx, broker.RecordKey{Kind: broker.PackageRecord, Name: s.Name}, []byte(`{}`), 0)
	k.must(err)
	rev, err := k.PutRecord(k.ctx, broker.RecordKey{Kind: broker.ScheduleRecord, Name: s.Name}, body, 0)
	k.must(err)
	k.until("the directory shows the schedule", func() bool {
		d, err := k.Directory(k.ctx)
		k.must(err)
		_, isAgent := d.Agents[s.Name]
		return d.Schedules[s.Name].Cron == s.Cron && !isAgent
	})
	_, err = k.PutRecord(k.ctx, broker.RecordKey{Kind: broker.ScheduleRecord, Name: s.Name}, []byte(`{"name":"other"}`), rev)
	k.must(err)
	k.until("an unreadable record is left out", func() bool {
		d, err := k.Directory(k.ctx)
		k.must(err)
		_, has := d.Schedules[s.Name]
		return !has
	})
	k.must(k.RemoveRecord(k.ctx, broker.RecordKey{Kind: broker.ScheduleRecord, Name: s.Name}))
}
