// Package mutate makes bad records of good ones, for tests: what a writer with a bug, or
// one that means harm, might put into the ledger. The same random source makes the same.
package mutate

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// Record makes something of a record's body that its writer did not mean, as a rule: a
// few mutations are records that can be read all the same. The body is not changed.
func Record(rng *rand.Rand, body []byte) []byte {
	switch rng.IntN(12) {
	case 0:
		return flipped(rng, body)
	case 1:
		return bytes.Clone(body[:rng.IntN(len(body))])
	case 2:
		return noise(rng)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var record any
	if err := decoder.Decode(&record); err != nil {
		return flipped(rng, body)
	}
	for range 1 + rng.IntN(3) {
		places := placesIn(record, nil)
		if len(places) == 0 {
			break
		}
		places[rng.IntN(len(places))].change(rng)
	}
	out, err := json.Marshal(record)
	if err != nil {
		return flipped(rng, body)
	}
	return out
}

func flipped(rng *rand.Rand, body []byte) []byte {
	out := bytes.Clone(body)
	for range 1 + rng.IntN(4) {
		out[rng.IntN(len(out))] ^= 1 << rng.IntN(8)
	}
	return out
}

// noise is what is no record at all.
func noise(rng *rand.Rand) []byte {
	switch rng.IntN(7) {
	case 0:
		return nil
	case 1:
		return bytes.Repeat([]byte("["), 1+rng.IntN(20_000))
	case 2:
		return bytes.Repeat([]byte(`{"state":`), 1+rng.IntN(2_000))
	case 3:
		return []byte(`{"v":1,"id":"x","events":[],"state":{}}`)
	case 4:
		return []byte(`{"v":1,"id":"x","events":[` + strings.Repeat(`{"type":"stuck"},`, rng.IntN(500)) + `{}],"state":{"message":"` + strings.Repeat("x", rng.IntN(100_000)) + `"}}`)
	case 5:
		return []byte(`null`)
	}
	out := make([]byte, 1+rng.IntN(500))
	for i := range out {
		out[i] = byte(rng.IntN(256))
	}
	return out
}

// place is a value in a document, and how to put another one there.
type place struct {
	value  any
	put    func(any)
	remove func()
}

// placesIn lists all values of a document, in an order that the same document has again.
func placesIn(document any, all []place) []place {
	switch d := document.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(d)) {
			all = append(all, place{d[key], func(v any) { d[key] = v }, func() { delete(d, key) }})
			all = placesIn(d[key], all)
		}
	case []any:
		for i := range d {
			all = append(all, place{d[i], func(v any) { d[i] = v }, func() { d[i] = nil }})
			all = placesIn(d[i], all)
		}
	}
	return all
}

var (
	texts = []any{"", ">", "*", "a.b", "a b", "\x00", "human", "coder", "working", "complete", "pending", "failed", "returned", "conditional", "timeout", "critical",
		"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "////", "AAAA", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", strings.Repeat("x", 5_000)}
	numbers = []any{json.Number("-1"), json.Number("0"), json.Number("1"), json.Number("7"), json.Number("1000"), json.Number("1000000000"), json.Number("9223372036854775807"),
		json.Number("18446744073709551615"), json.Number("4503599627370495"), json.Number("-9223372036854775808"), json.Number("1e300"), json.Number("0.5")}
)

// others are values of other types, made anew: what is put into a document may be changed.
func others() []any {
	return []any{nil, true, false, []any{}, map[string]any{}, []any{"a", "b"}, []any{json.Number("1")}, map[string]any{"size": json.Number("1000000000")}}
}

func (p place) change(rng *rand.Rand) {
	kinds := [][]any{texts, numbers, others()}
	own := 2
	switch p.value.(type) {
	case string:
		own = 0
	case json.Number:
		own = 1
	}
	switch rng.IntN(4) {
	case 0:
		p.remove()
		return
	case 1:
		own = rng.IntN(len(kinds)) // another type
	}
	if flag, ok := p.value.(bool); ok && rng.IntN(2) == 0 {
		p.put(!flag)
		return
	}
	p.put(kinds[own][rng.IntN(len(kinds[own]))])
}
