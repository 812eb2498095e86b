package schema

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// usable is an output schema, ready for checks. It is safe for concurrent use.
type usable struct {
	check *jsonschema.Schema
	meter *meter
	bytes int // of memory, an upper estimate
}

// cache holds schemas by the hash of their text. A fleet uses few of them, each many times: for
// every attempt of every handoff of a kind.
var cache = kept{max: cacheBytesMax, known: map[[sha256.Size]byte]*usable{}}

type kept struct {
	sync.Mutex
	max, bytes int
	known      map[[sha256.Size]byte]*usable
}

// compiling serializes compilations, so that their memory does not add up.
var compiling sync.Mutex

// of returns a cached schema, or compiles it.
func (k *kept) of(raw json.RawMessage) (*usable, *protocol.Error) {
	if len(raw) > outputSchemaBytesMax {
		return nil, tooLarge("%s", protocol.OverSize(len(raw), outputSchemaBytesMax))
	}
	key := sha256.Sum256(raw)
	if known := k.get(key); known != nil {
		return known, nil
	}
	compiling.Lock()
	defer compiling.Unlock()
	if known := k.get(key); known != nil {
		return known, nil
	}
	fresh, err := compile(raw)
	if err != nil {
		return nil, err.(*protocol.Error)
	}
	k.put(key, fresh)
	return fresh, nil
}

func (k *kept) get(key [sha256.Size]byte) *usable {
	k.Lock()
	defer k.Unlock()
	return k.known[key]
}

// put stores a schema, and drops arbitrary others until all fit: they can be compiled again.
func (k *kept) put(key [sha256.Size]byte, fresh *usable) {
	k.Lock()
	defer k.Unlock()
	for other, old := range k.known {
		if k.bytes+fresh.bytes <= k.max {
			break
		}
		delete(k.known, other)
		k.bytes -= old.bytes
	}
	if k.bytes+fresh.bytes <= k.max {
		k.known[key] = fresh
		k.bytes += fresh.bytes
	}
}

// sizeOf returns an upper estimate of the memory of a compiled schema: its subschemas, the paths to them, its regular expressions, and its parsed text.
func sizeOf(m *measured, schemas, text int) int {
	const perSchema, perPathByte, perInstruction, perPattern, perTextByte = 3 << 10, 8, 256, 2 << 10, 32
	return schemas*perSchema + m.pathBytes*perPathByte + m.instructions*perInstruction + m.patterns*perPattern + text*perTextByte
}
