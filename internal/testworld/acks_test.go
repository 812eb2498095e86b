package testworld

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestAcks compares results that come over a pipe, in pieces, with those of this process.
func TestAcks(t *testing.T) {
	said := fmt.Sprintf("%v\nsomething else\n%v\n%v\n", Ack{"a", time.Second, nil}, Ack{Took: time.Second, Err: errors.New("no")}, Ack{"b", 0, nil})
	var piped, told Acks
	for i := range said {
		_, _ = piped.Write([]byte(said[i : i+1]))
	}
	told.Add(Ack{"a", time.Second, nil})
	told.Add(Ack{Took: time.Second, Err: errors.New("no")})
	told.Add(Ack{"b", 0, nil})
	for _, a := range []*Acks{&piped, &told} {
		if got := a.Tickets(); !slices.Equal(got, []string{"a", "b"}) || a.longest != time.Second || len(a.failed) != 1 {
			t.Errorf("read as %v, %v, %v", got, a.longest, a.failed)
		}
	}
}
