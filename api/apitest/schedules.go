package apitest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testSchedules: a schedule is put, paused, resumed, run and removed. One that cannot fire, or whose
// package cannot be submitted, is refused by its field, and changes nothing.
func testSchedules(t *testing.T, w *world) {
	admin, name := w.All(t, api.Local("ann")), "s-"+protocol.NewTicket()[:8]
	request := api.PutSchedule{Name: name, Cron: "0 9 * * 1-5", Zone: "Europe/Berlin", Package: json.RawMessage(`{"target":{"agent":"coder"},"reason":"it is nine","task":{"description":"the report"}}`)}
	pkg := func(fields string) func(*api.PutSchedule) {
		return func(r *api.PutSchedule) {
			r.Package = json.RawMessage(`{"target":{"agent":"coder"},"reason":"r","task":{"description":"d"}` + fields + `}`)
		}
	}
	refusals := []struct {
		field  string
		code   protocol.Code
		change func(*api.PutSchedule)
	}{
		{"name", protocol.CodeMissing, func(r *api.PutSchedule) { r.Name = "" }},
		{"name", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Name = strings.Repeat("n", protocol.IDBytesMax+1) }},
		{"name", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Name = "a.b" }},
		{"cron", protocol.CodeMissing, func(r *api.PutSchedule) { r.Cron = "" }},
		{"cron", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Cron = "0 0 31 2 *" }},
		{"cron", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Cron = "* * * * * *" }},
		{"cron", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Cron = "@every 30s" }},
		{"cron", protocol.CodeTooLarge, func(r *api.PutSchedule) { r.Cron = strings.Repeat(" ", 257) + "* * * * *" }},
		{"zone", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Zone = "Europe/Berlln" }},
		{"overlap", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Overlap = "kill" }},
		{"missed", protocol.CodeInvalid, func(r *api.PutSchedule) { r.Missed = "some" }},
		{"package", protocol.CodeMissing, func(r *api.PutSchedule) { r.Package = nil }},
		{"package.reason", protocol.CodeMissing, func(r *api.PutSchedule) {
			r.Package = json.RawMessage(`{"target":{"agent":"coder"},"task":{"description":"d"}}`)
		}},
		{"package.target.agent", protocol.CodeUnknownAgent, func(r *api.PutSchedule) {
			r.Package = json.RawMessage(`{"target":{"agent":"unknown"},"reason":"r","task":{"description":"d"}}`)
		}},
		{"package.source", protocol.CodeConflict, pkg(`,"source":"lead"`)},
		{"package.key", protocol.CodeConflict, pkg(`,"key":"k"`)},
		{"package.start_at", protocol.CodeConflict, pkg(`,"start_at":"2030-01-01T00:00:00Z"`)},
		{"package.created_at", protocol.CodeConflict, pkg(`,"created_at":"2020-01-01T00:00:00Z"`)},
		{"package.constraints.deadline", protocol.CodeConflict, pkg(`,"constraints":{"deadline":"2030-01-01T00:00:00Z"}`)},
		{"package.parent", protocol.CodeConflict, pkg(`,"parent":"` + protocol.NewTicket() + `"`)},
		{"package.priority", protocol.CodeInvalid, pkg(`,"priority":"soon"`)},
	}
	refuse := func() {
		for _, c := range refusals {
			r := request
			c.change(&r)
			if _, err := admin.PutSchedule(w.ctx, r); !errors.Is(err, &protocol.Error{Code: c.code, Field: c.field}) {
				t.Errorf("%s: %v, want %s", c.field, err, c.code)
			}
		}
	}
	refuse()
	all, err := admin.Schedules(w.ctx)
	if w.must(err); len(all) != 0 {
		t.Errorf("refused, and there: %+v", all)
	}
	put, err := admin.PutSchedule(w.ctx, request)
	if w.must(err); len(put.Next) != 3 || put.By != "ann" || !slices.IsSortedFunc(put.Next, time.Time.Compare) {
		t.Errorf("put: %+v", put)
	}
	refuse()
	read, err := admin.Schedule(w.ctx, name)
	if w.must(err); read.Cron != request.Cron || !read.UpdatedAt.Equal(put.UpdatedAt) || !strings.Contains(string(read.Package), "the report") {
		t.Errorf("read: %+v", read)
	}
	first, err := admin.RunSchedule(w.ctx, name)
	if w.must(err); first.Schedule != name || first.Source != protocol.ScheduleSource || first.Target.Agent != "coder" {
		t.Errorf("run: %+v", first.Summary)
	}
	paused, err := admin.PauseSchedule(w.ctx, name)
	if w.must(err); paused.PausedAt.IsZero() || len(paused.Next) != 0 {
		t.Errorf("paused: %+v", paused)
	}
	if _, err := admin.RunSchedule(w.ctx, name); err != nil {
		t.Errorf("run while paused: %v", err)
	}
	resumed, err := admin.ResumeSchedule(w.ctx, name)
	if w.must(err); !resumed.PausedAt.IsZero() || len(resumed.Next) != 3 || resumed.DecidedTo.Before(paused.PausedAt) {
		t.Errorf("resumed: %+v", resumed)
	}
	same := request
	same.Overlap = protocol.OverlapQueue
	again, err := admin.PutSchedule(w.ctx, same)
	if w.must(err); !again.DecidedTo.Equal(resumed.DecidedTo) || !again.CreatedAt.Equal(put.CreatedAt) || again.Overlap != protocol.OverlapQueue {
		t.Errorf("with the same times: %+v", again)
	}
	_, err = admin.RemoveSchedule(w.ctx, name)
	w.must(err)
	for _, do := range []func() error{
		func() error { _, err := admin.Schedule(w.ctx, name); return err },
		func() error { _, err := admin.RunSchedule(w.ctx, name); return err },
		func() error { _, err := admin.PauseSchedule(w.ctx, name); return err },
		func() error { _, err := admin.RemoveSchedule(w.ctx, name); return err },
	} {
		w.wantCode("a schedule that is removed", do(), protocol.CodeNotFound)
	}
	spoof := newPackage("coder", "schedule:"+name)
	spoof.Source = protocol.ScheduleSource
	_, err = admin.Submit(w.ctx, spoof)
	w.wantCode("a package with the source of schedules", err, protocol.CodeReserved)
}
