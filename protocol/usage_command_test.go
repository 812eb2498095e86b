package protocol

import "testing"

// TestCommandIsMetered: update.metrics of a command counts as usage, and of each figure the larger one.
func TestCommandIsMetered(t *testing.T) {
	for _, c := range []struct {
		update string
		own    *Usage
		want   Usage
	}{
		{`{"metrics":{"tokens_used":700,"time_elapsed":1.5}}`, nil, Usage{Tokens: 700, TimeMS: 1500}},
		{`{"metrics":{"tokens_used":700}}`, &Usage{Tokens: 900}, Usage{Tokens: 900}},
		{`{"metrics":{"tokens_used":700}}`, &Usage{Tokens: 300, Calls: 2}, Usage{Tokens: 700, Calls: 2}},
		{`{"metrics":{"tokens_used":"many","time_elapsed":-1}}`, nil, Usage{}},
		{`{"metrics":{"tokens_used":1e300}}`, nil, Usage{}},
		{`{"metrics":7}`, nil, Usage{}},
		{`{"reason":"metrics"}`, nil, Usage{}},
	} {
		r := Result{Usage: c.own, Command: &Command{Update: []byte(c.update)}}
		r.Normalize()
		r.Normalize() // twice is once
		got := Usage{}
		if r.Usage != nil {
			got = *r.Usage
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.update, got, c.want)
		}
	}
}
