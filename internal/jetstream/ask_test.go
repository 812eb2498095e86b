package jetstream

import (
	"encoding/json"
	"testing"
)

// What is read without a decoder is what a decoder reads, and nothing else is.
func TestAckedSeq(t *testing.T) {
	for _, ack := range []string{
		`{"stream":"HANDOFF_LEDGER","seq":1}`, `{"stream":"S","seq":9999999999999999999}`, `{"stream":"S","seq":1234567890123456789}`,
		`{"stream":"S","seq":0}`, `{"stream":"S", "seq":7}`, `{"stream":"S","seq":7,"duplicate":true}`, `{"stream":"S", "domain":"hub","seq":7}`,
		`{"error":{"code":400,"err_code":10071,"description":"x"},"stream":"S","seq":0}`, `{"stream":"S","seq":}`, `{"stream":"S","seq":-1}`,
		`{"stream":"S","seq":1.5}`, `{"stream":"S","seq":7} `, `{"stream":"S","seq":7}{"error":{}}`, `{"stream":"S","seq":7`, `{"stream":"S`, `{}`, ``,
		`{"stream":"a\\","seq":3,"x":"","seq":4}`,
	} {
		got, ok := ackedSeq([]byte(ack))
		var plain struct {
			Seq   uint64 `json:"seq"`
			Error any    `json:"error"`
		}
		err := json.Unmarshal([]byte(ack), &plain)
		if ok && (err != nil || plain.Error != nil || plain.Seq != got) {
			t.Errorf("%s was read as %d, a decoder reads %+v (%v)", ack, got, plain, err)
		}
	}
	if seq, ok := ackedSeq([]byte(`{"stream":"HANDOFF_LEDGER","seq":1234567}`)); !ok || seq != 1234567 {
		t.Errorf("what the engine writes was left to a decoder: %d, %v", seq, ok)
	}
}
