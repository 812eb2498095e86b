package worker

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol/redact"
)

// What a failure quotes of standard error begins behind the first line of a key,
// and shows nothing of it.
func TestTailKeepsNoPartOfASecret(t *testing.T) {
	redactor, err := redact.Default()
	if err != nil {
		t.Fatal(err)
	}
	l := lines{log: slog.New(slog.DiscardHandler), redactor: redactor}
	const part = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKB"
	said := "the key is\n-----BEGIN PRIV" + "ATE KEY-----\n" + strings.Repeat(part+"\n", 28) + "-----END PRIV" + "ATE KEY-----\n" + "it does not fit\n"
	l.readFrom(strings.NewReader(said))
	if tail := l.tail(); tail != "the key is\n"+redact.Marker+"\nit does not fit" {
		t.Errorf("the tail is %q", tail)
	}
	l.readFrom(strings.NewReader(strings.Repeat("line\n", 30)))
	if tail := l.tail(); strings.Count(tail, "line") != tailLines {
		t.Errorf("the tail is %q", tail)
	}
	l.readFrom(strings.NewReader(strings.Repeat(strings.Repeat("x", 5000)+"\n", 50)))
	if l.bytes > keptBytesMax || len(l.tail()) > tailBytesMax+len("…") {
		t.Errorf("%d bytes are kept, and %d quoted", l.bytes, len(l.tail()))
	}
}
