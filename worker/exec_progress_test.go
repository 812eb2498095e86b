package worker

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestProgressFromLine(t *testing.T) {
	for line, want := range map[string]protocol.Progress{
		"40 parsing the rest":              {Percent: 40, Message: "parsing the rest"},
		"40%":                              {Percent: 40},
		"12.5% of it":                      {Percent: 12.5, Message: "of it"},
		"parsing":                          {Message: "parsing"},
		"400 files read":                   {Message: "400 files read"},
		"-1 odd":                           {Message: "-1 odd"},
		"NaN":                              {Message: "NaN"},
		`{"percent":7,"message":"so far"}`: {Percent: 7, Message: "so far"},
		`{"percent":700}`:                  {Message: `{"percent":700}`},
		"a\x00b \xff":                      {Message: "ab \uFFFD"},
	} {
		if got := progressFromLine(line); got.Percent != want.Percent || got.Message != want.Message {
			t.Errorf("%q is %+v, want %+v", line, got, want)
		} else if err := got.Validate(); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	long := progressFromLine(strings.Repeat("ä", protocol.ProgressMessageBytesMax))
	if err := long.Validate(); err != nil {
		t.Error(err)
	}
}

func TestExtensionFromLine(t *testing.T) {
	for line, want := range map[string]time.Duration{
		`{"extend_ms":600000,"reason":"slow tests"}`:        10 * time.Minute,
		`{"extend_ms":9000000000000,"reason":"slow tests"}`: millis(protocol.ExtensionMaxMS),
		`{"percent":40}`: 0, `{"extend_ms":-1}`: 0, "40 parsing": 0,
	} {
		if by, reason, ok := extensionFromLine(line); by != want || ok != (want > 0) || ok && reason != "slow tests" {
			t.Errorf("%s: %v, %q, %t", line, by, reason, ok)
		}
	}
}

// Only whole lines count, and of a long file only its end is read.
func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	for text, want := range map[string]string{
		"": "", "10": "", "10\n": "10", "10\n20": "10", "10\n20\n\n": "20",
		strings.Repeat("x", 3*progressTailBytes) + "\n30\n": "30",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := lastLine(path); got != want || err != nil {
			t.Errorf("last line %q, %v, want %q", got, err, want)
		}
	}
	if got, err := lastLine(path + "-missing"); got != "" || err != nil {
		t.Errorf("a file that is not there has the line %q, %v", got, err)
	}
}

// TestGrowing reads a file as it grows, is written anew, shrinks and ends without a newline.
func TestGrowing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	file := growing{path: path}
	write := func(flags int, text string) {
		t.Helper()
		f, err := os.OpenFile(path, flags|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
		}
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	want := func(end bool, lines ...string) {
		t.Helper()
		if got, err := file.next(end); err != nil || !slices.Equal(got, lines) {
			t.Errorf("read %q, %v, want %q", got, err, lines)
		}
	}
	want(false)
	write(os.O_APPEND, "1\n2\n\n3")
	want(false, "1", "2")
	want(false)
	write(os.O_APPEND, "0\n4\n")
	want(false, "30", "4")
	write(os.O_TRUNC, "5\n")
	want(false, "5")
	write(os.O_TRUNC, "6\n") // of the same size
	want(false, "6")
	write(os.O_APPEND, strings.Repeat("x", progressTailBytes+1)+"\n7\n8")
	want(false, "7")
	want(true, "8")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(true)
	write(os.O_APPEND, strings.Repeat("9\n", progressPassBytes/2)+"10\n")
	if got, err := file.next(false); len(got) != progressPassBytes/2 || err != nil {
		t.Errorf("%d lines, %v", len(got), err)
	}
	want(false, "10")
}
