package cli

import (
	"testing"
)

func TestWhereToAsk(t *testing.T) {
	for addr, want := range map[string]string{
		":9090": "http://127.0.0.1:9090", "9090": "http://127.0.0.1:9090", "0.0.0.0:9090": "http://127.0.0.1:9090",
		"[::]:9090": "http://[::1]:9090", "10.1.2.3:80": "http://10.1.2.3:80", "handoff.example:80": "http://handoff.example:80",
		":0": "", "nowhere:": "", ":99999": "", "a:b:c": "",
	} {
		got, err := whereToAsk(addr)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", addr, got, err, want)
		}
	}
}
