package jetstream

import (
	"testing"
	"time"
)

// A follower lets messages gather from a rate on, unless the last request was used
// up, and asks at once below it.
func TestGather(t *testing.T) {
	begun := time.Now()
	for _, c := range []struct {
		name  string
		came  int
		took  time.Duration
		waits bool
		lets  bool
	}{
		{"nothing came", 0, time.Second, false, false},
		{"fewer than the rate", 99, 100 * time.Millisecond, false, false},
		{"the rate", 100, 100 * time.Millisecond, true, true},
		{"a used up request", followBatch, 10 * time.Millisecond, false, true},
		{"a used up request below the rate", followBatch, time.Second, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &follower{came: c.came, over: begun}
			now := begun.Add(c.took)
			if waits := f.shouldGather(now); waits != c.waits || f.gathers != c.lets {
				t.Errorf("waits %v and gathers %v, want %v and %v", waits, f.gathers, c.waits, c.lets)
			}
			if f.came != 0 || !f.over.Equal(now) {
				t.Errorf("it counts on from %d at %v", f.came, f.over)
			}
			f.left, f.expires = 1, now.Add(time.Second)
			if f.shouldGather(now) {
				t.Error("it waits while a request is under way")
			}
		})
	}
}
