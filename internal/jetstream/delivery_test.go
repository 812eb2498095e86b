package jetstream

import "testing"

func TestReadAckSubject(t *testing.T) {
	for subject, want := range map[string]ackInfo{
		"$JS.ACK.HANDOFF_WORK.coder-normal.1.1790000000000001.7.1790000000000000000.12":    {1, 1790000000000001, 1790000000000000000, 12},
		"$JS.ACK.hub.ACCOUNT.HANDOFF_WORK.coder-normal.3.42.7.1790000000000000000.0":       {3, 42, 1790000000000000000, 0},
		"$JS.ACK.hub.ACCOUNT.HANDOFF_WORK.coder-normal.3.42.7.1790000000000000000.0.token": {3, 42, 1790000000000000000, 0},
		"$JS.ACK.HANDOFF_WORK.coder-normal.1.x.7.1790000000000000000.12":                   {},
		"$JS.ACK.HANDOFF_WORK.coder-normal.1.2.7.1790000000000000000.many":                 {},
		"$JS.ACK.HANDOFF_WORK.coder-normal.1.2.7":                                          {},
		"":         {},
		"........": {},
		"$JS.ACK.HANDOFF_WORK.coder-normal.99999999999999999999.2.7.1790000000000000000.1": {},
	} {
		if got := readAckSubject(subject); got != want {
			t.Errorf("%s: %+v, want %+v", subject, got, want)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		readAckSubject("$JS.ACK.HANDOFF_WORK.coder-normal.1.1790000000000001.7.1790000000000000000.12")
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
