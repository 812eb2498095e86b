//go:build proof

package hostile

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
)

// message is one message that no Handoff would send.
type message struct {
	subject string
	header  nats.Header
	body    []byte
}

// engineBytesMax is a little less than the engine takes in one message, headers included.
const engineBytesMax = 1<<20 - 16<<10

// foreignBodies are bodies that have nothing to do with what belongs where they are sent.
var foreignBodies = func() [][]byte {
	binary := make([]byte, 300)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	large := bytes.Repeat([]byte("x"), engineBytesMax)
	long := append(append([]byte(`{"id":"`), large[:engineBytesMax-16]...), `"}`...)
	texts := []string{
		"", " ", "null", "true", "0", "-1", "1e999", `"text"`, "[]", "{}", "[{}]", `{"":null}`, "{", `{"id":`, `"\ud800"`, "\xff\xfe", "\x00",
		`{"id":1e999,"events":{},"state":"\ud800"}`, `{"state":{},"seq":18446744073709551616}`,
		`{"id":"human","agent":"human","holder":"` + strings.Repeat("h", 5_000) + `"}`,
		"not json at all; DROP TABLE handoffs", "\x1b[2J\x1b]0;title\x07",
	}
	all := [][]byte{binary, large, long,
		bytes.Repeat([]byte("["), 20_000), append(bytes.Repeat([]byte("["), 5_000), bytes.Repeat([]byte("]"), 5_000)...),
		append(bytes.Repeat([]byte(`{"state":`), 5_000), bytes.Repeat([]byte("}"), 5_000)...)}
	for _, text := range texts {
		all = append(all, []byte(text))
	}
	return all
}()

// absurdValues are values that are put in the place of others.
var absurdValues = []string{
	"null", "true", "-1", "0", "9223372036854775807", "18446744073709551615", "1e308", `""`, `"x"`, `"../../a b.>.*"`, `"\u0000\n\u001b[2J"`,
	`"9999-12-31T23:59:59Z"`, `"0001-01-01T00:00:00Z"`, "[]", "{}", "[null]", `[[[]]]`, `{"a":{"a":{}}}`,
}

// mutated are bodies that were right but for one field, at the top or one below it: it
// is gone, or has an absurd value. Fields that name what a body is of come as they are.
func mutated(valid []byte) [][]byte {
	var all [][]byte
	for _, cut := range []int{1, len(valid) / 2, len(valid) - 1} {
		all = append(all, valid[:cut])
	}
	all = append(all, append(slices.Clone(valid), valid...), append(slices.Clone(valid), "}]"...))
	var top map[string]json.RawMessage
	if json.Unmarshal(valid, &top) != nil {
		return all
	}
	return append(all, variants(top, 1)...)
}

func variants(of map[string]json.RawMessage, deeper int) (all [][]byte) {
	with := func(key string, value json.RawMessage) []byte {
		other := maps.Clone(of)
		if other[key] = value; value == nil {
			delete(other, key)
		}
		body, err := json.Marshal(other)
		if err != nil {
			return nil
		}
		return body
	}
	for _, key := range slices.Sorted(maps.Keys(of)) {
		all = append(all, with(key, nil))
		for _, value := range absurdValues {
			all = append(all, with(key, json.RawMessage(value)))
		}
		var below map[string]json.RawMessage
		if deeper > 0 && json.Unmarshal(of[key], &below) == nil {
			for _, value := range variants(below, deeper-1) {
				all = append(all, with(key, value))
			}
		}
	}
	return all
}

// headers are sent beside bodies, one after another.
var headers = []nats.Header{
	nil,
	{"Nats-Schedule": {"@at never"}, "Nats-Schedule-Target": {"handoff.due.a.1"}},
	{"Nats-Schedule": {"@at 2000-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"handoff.due.a.1"}},
	{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"handoff.due.every.1"}},
	{"Nats-Schedule": {"@every 1ns"}, "Nats-Schedule-Target": {"handoff.ledger.a"}},
	{"Nats-Expected-Last-Subject-Sequence": {"x"}},
	{"Nats-TTL": {"never"}}, {"Nats-TTL": {"1s"}},
	{"KV-Operation": {"DEL"}}, {"KV-Operation": {"x"}}, {"Nats-Marker-Reason": {"MaxAge"}},
	{"Handoff-Record": {strings.Repeat("r", 10_000)}},
	{"Nats-Msg-Id": {"1"}}, {"traceparent": {"00-x"}}, {"X": {"\x00\x01"}},
	{"Nats-Service-Error-Code": {"500"}}, {"Status": {"503"}},
}

// header is one for a body: most have none, for the engine refuses some.
func header(i int) nats.Header {
	if i%4 != 0 {
		return nil
	}
	return headers[i/4%len(headers)]
}

// messagesFor sends each body with one of the headers, and each header with one of the bodies.
func messagesFor(subject string, bodies [][]byte) []message {
	all := make([]message, 0, len(bodies)+len(headers))
	for i := range max(len(bodies), len(headers)) {
		all = append(all, message{subject, headers[i%len(headers)], bodies[i%len(bodies)]})
	}
	return all
}
