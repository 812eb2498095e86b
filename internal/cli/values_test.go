package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestParseDuration(t *testing.T) {
	day := 24 * time.Hour
	good := map[string]time.Duration{
		"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "2d": 2 * day, "1d12h": 36 * time.Hour, "0s": 0, "0d": 0,
		"-5m": -5 * time.Minute, "-1d": -day, "250ms": 250 * time.Millisecond, "1.5h": 90 * time.Minute,
	}
	for text, want := range good {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "s", "d", "1d-2h", "--1h", "1h2d", "1dd", "1.5d", "soon", "999999999h", "99999d", "-"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestParseInstant(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 123456789, time.UTC)
	at, relative, err := parseInstant("2h", now)
	if want := time.Date(2026, 1, 31, 14, 0, 0, 123000000, time.UTC); err != nil || !relative || !at.Equal(want) {
		t.Errorf("2h: %v, %v, %v; want %v", at, relative, err, want)
	}
	at, relative, err = parseInstant("2026-02-01T09:30:00+02:00", now)
	if want := time.Date(2026, 2, 1, 7, 30, 0, 0, time.UTC); err != nil || relative || !at.Equal(want) || at.Location() != time.UTC {
		t.Errorf("an instant: %v, %v, %v; want %v in UTC", at, relative, err, want)
	}
	for _, text := range []string{"tomorrow", "2026-02-01", "12:30", ""} {
		if _, _, err := parseInstant(text, now); err == nil || !strings.Contains(err.Error(), "neither") {
			t.Errorf("parseInstant(%q): %v, want an error that shows both forms", text, err)
		}
	}
}

func TestParseVariables(t *testing.T) {
	got, err := parseVariables("--var", []string{"n=3", "s=three", `o={"a":[1]}`, "q=\"3\"", "e=", "u=a=b", "t=true", "bad={"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"n": "3", "s": `"three"`, "o": `{"a":[1]}`, "q": `"3"`, "e": `""`, "u": `"a=b"`, "t": "true", "bad": `"{"`}
	for name, value := range want {
		if string(got[name]) != value {
			t.Errorf("%s is %s, want %s", name, got[name], value)
		}
	}
	for _, pair := range []string{"novalue", "=x", ""} {
		if _, err := parseVariables("--var", []string{pair}); exitFor(err).code != exitUsage {
			t.Errorf("%q: %v, want a usage error", pair, err)
		}
	}
}

func TestCheckWords(t *testing.T) {
	for text, code := range map[string]protocol.Code{
		"": "", "a word": "", "a\xffb": protocol.CodeText, "a\x00b": protocol.CodeText,
		strings.Repeat("x", protocol.ReasonBytesMax): "", strings.Repeat("x", protocol.ReasonBytesMax+1): protocol.CodeTooLarge,
	} {
		err := checkWords("reason", text)
		if got := errors.Is(err, &protocol.Error{Code: code, Field: "reason"}); got != (code != "") || err == nil != (code == "") {
			t.Errorf("%.20q: %v, want %q", text, err, code)
		}
	}
	if err := needWords("reason", " "); !errors.Is(err, &protocol.Error{Code: protocol.CodeMissing}) {
		t.Errorf("blank words: %v", err)
	}
}
