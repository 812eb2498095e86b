package brokertest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

var directoryCases = []conformanceCase{
	{"profiles are put, read, replaced and removed", profiles},
	{"holders are put, read and removed", holders},
	{"a holder expires when it no longer beats", holderExpires},
	{"a holder that beats stays", holderStays},
	{"the directory shows agents and holders", directoryShows},
	{"a snapshot never changes", directoryImmutable},
	{"the directory knows since when it is connected", directoryConnected},
	{"last present is when the last holder that attended went", lastPresent},
	{"slots are changed by one of two who read them", slots},
	{"the use of a limited key is changed by one of two who read it", keyUses},
	{"the health of an agent is changed by one of two who read it, and shows in the directory", health},
	{"settings of the fleet are changed by one of two who read them", fleet},
	{"departures are told after the directory has changed", departures},
}

var blobCases = []conformanceCase{
	{"a body is stored under its digest", blobRoundTrip},
	{"storing a body twice is harmless", blobTwice},
	{"an unknown body", blobUnknown},
	{"a reference that does not fit", blobMisfit},
}

func profiles(k *kit) {
	agent := k.agent()
	_, err := k.Profile(k.ctx, agent)
	k.wantErr(err, broker.ErrNotFound)
	for _, name := range []string{"first", "second"} {
		k.must(k.PutProfile(k.ctx, protocol.Profile{ID: agent, Name: name}))
		p, err := k.Profile(k.ctx, agent)
		k.must(err)
		if p.ID != agent || p.Name != name {
			k.Errorf("read back %q %q", p.ID, p.Name)
		}
	}
	k.must(k.RemoveProfile(k.ctx, agent))
	_, err = k.Profile(k.ctx, agent)
	k.wantErr(err, broker.ErrNotFound)
	k.must(k.RemoveProfile(k.ctx, agent))
	k.must(k.PutProfile(k.ctx, protocol.Profile{ID: agent, Name: "third"}))
	_, err = k.Profile(k.ctx, agent)
	k.must(err)
}

func holders(k *kit) {
	h := k.holder(k.agent())
	_, err := k.Holder(k.ctx, h.ID)
	k.wantErr(err, broker.ErrNotFound)
	for busy := range 2 {
		h.Busy = busy
		k.must(k.Beat(k.ctx, h))
		got, err := k.Holder(k.ctx, h.ID)
		k.must(err)
		if got != h {
			k.Errorf("read back %+v, want %+v", got, h)
		}
	}
	k.must(k.RemoveHolder(k.ctx, h.ID))
	_, err = k.Holder(k.ctx, h.ID)
	k.wantErr(err, broker.ErrNotFound)
	k.must(k.RemoveHolder(k.ctx, h.ID))
}

// fleet: the settings of the fleet stand beside the agents. A case may find those of another one.
func fleet(k *kit) {
	before, rev, err := k.Fleet(k.ctx)
	k.must(err)
	queue := protocol.NoTakerQueue
	wanted := protocol.Fleet{Policy: protocol.PolicyOverrides{OnNoTaker: &queue}}
	next, err := k.PutFleet(k.ctx, wanted, rev)
	k.must(err)
	if next == rev {
		k.Errorf("the revision stays %d", rev)
	}
	_, err = k.PutFleet(k.ctx, protocol.Fleet{}, rev)
	k.wantErr(err, broker.ErrConflict)
	read, rev, err := k.Fleet(k.ctx)
	if k.must(err); rev != next || read.Policy.OnNoTaker == nil || *read.Policy.OnNoTaker != queue {
		k.Errorf("read back %+v at %d, put at %d", read, rev, next)
	}
	k.until("the directory shows the settings, and no agent of their name", func() bool {
		d, err := k.Directory(k.ctx)
		k.must(err)
		_, isAgent := d.Agents[protocol.FleetKey]
		return d.Fleet != nil && d.Fleet.Policy.OnNoTaker != nil && !isAgent
	})
	_, err = k.PutFleet(k.ctx, before, rev)
	k.must(err)
}

// holderExpired tells whether a holder has expired, by the leader.
func (k *kit) holderExpired(id string) bool {
	k.Helper()
	_, err := k.Holder(k.ctx, id)
	if err == nil {
		return false
	}
	k.wantErr(err, broker.ErrNotFound)
	return true
}

func holderExpires(k *kit) {
	h := k.holder(k.agent())
	h.LeaseMS = 1000
	k.must(k.Beat(k.ctx, h))
	k.until("the holder's expiry", func() bool { return k.holderExpired(h.ID) })
	k.must(k.Beat(k.ctx, h)) // it comes back
	if k.holderExpired(h.ID) {
		k.Error("a beat did not bring it back")
	}
}

func holderStays(k *kit) {
	h := k.holder(k.agent())
	h.LeaseMS = 1600 // two seconds, rounded up
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		beat := time.Now()
		k.must(k.Beat(k.ctx, h))
		<-tick.C
		gone := k.holderExpired(h.ID)
		switch late := time.Since(beat) > time.Second; {
		case gone && late: // the machine was too busy to beat in time: begin anew
			end = time.Now().Add(3 * time.Second)
		case gone:
			k.Fatal("it expired while it beat")
		}
	}
}

// awaitDirectory waits until the directory is as it should be.
func (k *kit) awaitDirectory(what string, ok func(*lifecycle.Directory) bool) *lifecycle.Directory {
	k.Helper()
	var d *lifecycle.Directory
	k.until(what, func() (yes bool) {
		var err error
		d, err = k.Directory(k.ctx)
		k.must(err)
		return ok(d)
	})
	return d
}

func directoryShows(k *kit) {
	agent := k.agent()
	k.must(k.PutProfile(k.ctx, protocol.Profile{ID: agent, Name: "before"}))
	d := k.awaitDirectory("an agent put before the watch began", func(d *lifecycle.Directory) bool {
		profile, _ := d.Agent(agent)
		return profile.Name == "before"
	})
	k.must(k.PutProfile(k.ctx, protocol.Profile{ID: agent, Name: "after"}))
	h := k.holder(agent)
	k.must(k.Beat(k.ctx, h))
	after := k.awaitDirectory("both changes", func(d *lifecycle.Directory) bool {
		profile, _ := d.Agent(agent)
		return profile.Name == "after" && d.Holders[h.ID] == h
	})
	if after.Revision <= d.Revision {
		k.Errorf("revision %d after %d", after.Revision, d.Revision)
	}
	k.must(k.RemoveHolder(k.ctx, h.ID))
	k.must(k.RemoveProfile(k.ctx, agent))
	k.awaitDirectory("both removals", func(d *lifecycle.Directory) bool {
		_, known := d.Agents[agent]
		return !known && !d.Present(h.ID)
	})
}

func directoryImmutable(k *kit) {
	agent := k.agent()
	h := k.holder(agent)
	k.must(k.Beat(k.ctx, h))
	old := k.awaitDirectory("the holder", func(d *lifecycle.Directory) bool { return d.Present(h.ID) })
	revision, n := old.Revision, len(old.Holders)
	var wg sync.WaitGroup
	wg.Go(func() { // with the race detector, this reads what a writer must not touch
		for range 1000 {
			_ = old.Holders[h.ID]
		}
	})
	for range 20 {
		k.must(k.Beat(k.ctx, k.holder(agent)))
	}
	k.must(k.RemoveHolder(k.ctx, h.ID))
	k.awaitDirectory("the removal", func(d *lifecycle.Directory) bool { return !d.Present(h.ID) })
	wg.Wait()
	if !old.Present(h.ID) || old.Revision != revision || len(old.Holders) != n {
		k.Error("an old snapshot changed")
	}
}

func directoryConnected(k *kit) {
	before := k.Now().Add(-time.Minute)
	d, err := k.Directory(k.ctx)
	k.must(err)
	if d.ConnectedSince.Before(before) || d.ConnectedSince.After(k.Now().Add(time.Second)) {
		k.Errorf("connected since %v", d.ConnectedSince)
	}
}

func lastPresent(k *kit) {
	agent, began := k.agent(), k.Now().Add(-time.Second)
	a, b := k.holder(agent), k.holder(agent)
	polling, draining := k.holder(agent), k.holder(agent)
	polling.Polling, draining.Draining = true, true
	for _, h := range []protocol.Holder{polling, draining, a, b} {
		k.must(k.Beat(k.ctx, h))
	}
	absent := func(d *lifecycle.Directory) bool { _, ok := d.LastPresent[agent]; return ok }
	d := k.awaitDirectory("all holders", func(d *lifecycle.Directory) bool {
		return d.Present(a.ID) && d.Present(b.ID) && d.Present(polling.ID) && d.Present(draining.ID)
	})
	if absent(d) {
		k.Error("absent with two live holders")
	}
	k.must(k.RemoveHolder(k.ctx, a.ID))
	if d := k.awaitDirectory("one gone", func(d *lifecycle.Directory) bool { return !d.Present(a.ID) }); absent(d) {
		k.Error("absent with one live holder")
	}
	b.Draining = true // it stays, and serves no more
	k.must(k.Beat(k.ctx, b))
	if d := k.awaitDirectory("the drain", func(d *lifecycle.Directory) bool { return d.Holders[b.ID].Draining }); absent(d) {
		k.Error("absent while it polls")
	}
	k.must(k.RemoveHolder(k.ctx, polling.ID))
	d = k.awaitDirectory("the agent's absence", absent)
	if at := d.LastPresent[agent]; at.Before(began) || at.After(k.Now().Add(time.Second)) {
		k.Errorf("last present at %v", at)
	}
	k.must(k.Beat(k.ctx, a))
	k.awaitDirectory("the agent's return", func(d *lifecycle.Directory) bool { return d.Present(a.ID) && !absent(d) })
}

func slots(k *kit) {
	agent := k.agent()
	taken, rev, err := k.Slots(k.ctx, agent)
	k.must(err)
	if len(taken) != 0 || rev != 0 {
		k.Fatalf("a new agent has %v at %d", taken, rev)
	}
	mine := protocol.Slots{protocol.NewTicket(): {Holder: protocol.NewTicket(), At: k.Now().UTC().Truncate(time.Second)}}
	first := k.wins(func() error { _, err := k.PutSlots(k.ctx, agent, mine, 0); return err })
	taken, rev, err = k.Slots(k.ctx, agent)
	k.must(err)
	if first != 1 || rev == 0 || !maps.Equal(taken, mine) {
		k.Errorf("%d of 4 wrote; there is %v at %d", first, taken, rev)
	}
	_, err = k.PutSlots(k.ctx, agent, nil, rev+1)
	k.wantErr(err, broker.ErrConflict)
	next, err := k.PutSlots(k.ctx, agent, protocol.Slots{}, rev)
	k.must(err)
	taken, again, err := k.Slots(k.ctx, agent)
	k.must(err)
	if len(taken) != 0 || again <= rev || again != next {
		k.Errorf("%v at %d, said to be %d, after %d", taken, again, next, rev)
	}
}

// health: one of two writers changes it, the directory shows it, and without a failure shows none.
func health(k *kit) {
	agent := k.agent()
	h, rev, err := k.Health(k.ctx, agent)
	k.must(err)
	if !h.IsZero() || rev != 0 {
		k.Errorf("of a new agent: %+v at %d", h, rev)
	}
	wanted := protocol.Health{Failed: 1, Failures: []protocol.FailedHandoff{{Ticket: protocol.NewTicket(), Fence: 7}}, OpenUntil: time.Now().UTC().Truncate(time.Millisecond).Add(time.Minute), Trips: 1}
	next, err := k.PutHealth(k.ctx, agent, wanted, rev)
	k.must(err)
	_, err = k.PutHealth(k.ctx, agent, protocol.Health{}, rev)
	k.wantErr(err, broker.ErrConflict)
	h, rev, err = k.Health(k.ctx, agent)
	k.must(err)
	wanted.Agent = agent
	if !reflect.DeepEqual(h, wanted) || rev != next {
		k.Errorf("read %+v at %d, want %+v at %d", h, rev, wanted, next)
	}
	k.awaitDirectory("the health", func(d *lifecycle.Directory) bool {
		seen := d.Health[agent]
		return seen.Rev == rev && seen.Trips == 1 && seen.OpenUntil.Equal(wanted.OpenUntil)
	})
	_, err = k.PutHealth(k.ctx, agent, protocol.Health{}, rev)
	k.must(err)
	k.awaitDirectory("no health", func(d *lifecycle.Directory) bool {
		_, there := d.Health[agent]
		return !there
	})
	h, _, err = k.Health(k.ctx, agent)
	k.must(err)
	if !h.IsZero() {
		k.Errorf("emptied: %+v", h)
	}
}

func departures(k *kit) {
	gone, err := k.Departures(k.ctx)
	k.must(err)
	agent := k.agent()
	expires, leaves := k.holder(agent), k.holder(agent)
	expires.LeaseMS = 1000
	for _, h := range []protocol.Holder{expires, leaves} {
		k.must(k.Beat(k.ctx, h))
		k.awaitDirectory("the holder", func(d *lifecycle.Directory) bool { return d.Present(h.ID) })
	}
	k.must(k.RemoveHolder(k.ctx, leaves.ID))
	want := map[string]protocol.Holder{expires.ID: expires, leaves.ID: leaves}
	for len(want) > 0 {
		h := receive(k, "a departure", gone)
		w, mine := want[h.ID]
		if !mine {
			continue
		}
		if w != h {
			k.Errorf("departed %+v, want %+v", h, w)
		}
		d, err := k.Directory(k.ctx)
		k.must(err)
		if d.Present(h.ID) {
			k.Error("the directory has it still")
		}
		delete(want, h.ID)
	}
}

func blobRoundTrip(k *kit) {
	for _, size := range []int{0, 1, 300 << 10, 3 << 20} {
		body := make([]byte, size)
		_, _ = rand.Read(body)
		ref, err := k.PutBlob(k.ctx, body)
		k.must(err)
		if ref != broker.RefOf(body) {
			k.Errorf("%d bytes: reference %v", size, ref)
		}
		got, err := k.Blob(k.ctx, ref)
		k.must(err)
		if !bytes.Equal(got, body) {
			k.Errorf("%d bytes came back changed", size)
		}
	}
}

func blobTwice(k *kit) {
	body := []byte(protocol.NewTicket())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := k.PutBlob(k.ctx, body); err != nil {
				k.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := k.Blob(k.ctx, broker.RefOf(body))
	k.must(err)
	if !bytes.Equal(got, body) {
		k.Error("came back changed")
	}
}

func blobUnknown(k *kit) {
	_, err := k.Blob(k.ctx, broker.RefOf([]byte(protocol.NewTicket())))
	k.wantErr(err, broker.ErrNotFound)
	_, err = k.Blob(k.ctx, protocol.BlobRef{Digest: "no digest", Size: 1})
	k.wantErr(err, broker.ErrNotFound)
}

func blobMisfit(k *kit) {
	ref, err := k.PutBlob(k.ctx, []byte(protocol.NewTicket()))
	k.must(err)
	ref.Size++
	_, err = k.Blob(k.ctx, ref)
	k.wantErr(err, broker.ErrNotFound)
	var damaged *jetstream.DamagedBody
	if !errors.As(err, &damaged) {
		k.Errorf("a body of another size: %v", err)
	}
}

// wins counts which of four writes at once succeed. The others must be refused with ErrConflict.
func (k *kit) wins(write func() error) (won int) {
	k.Helper()
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = write() })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, broker.ErrConflict) {
			k.Error(err)
		}
	}
	return won
}
