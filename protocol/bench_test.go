package protocol_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// sized is a package whose history makes it about so many bytes of JSON.
func sized(t testing.TB, size int) []byte {
	pkg := whole()
	message := json.RawMessage(`{"role":"assistant","name":"coder","content":"` + strings.Repeat("a line of a conversation\\n", 8) + `"}`)
	for n := 0; n < size; n += len(message) {
		pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, message)
	}
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

var sizes = []int{0, 1 << 10, 200 << 10}

func bench(b *testing.B, size int, body []byte, fn func() error) {
	b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if err := fn(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkDecodePackage(b *testing.B) {
	for _, size := range sizes {
		body := sized(b, size)
		bench(b, size, body, func() error { _, err := protocol.DecodePackage(body); return err })
	}
}

// BenchmarkUnmarshalPackage is what decoding costs without being strict.
func BenchmarkUnmarshalPackage(b *testing.B) {
	type plain protocol.Package
	for _, size := range sizes {
		body := sized(b, size)
		bench(b, size, body, func() error { var p plain; return json.Unmarshal(body, &p) })
	}
}

func BenchmarkValidatePackage(b *testing.B) {
	for _, size := range sizes {
		body := sized(b, size)
		pkg, err := protocol.DecodePackage(body)
		if err != nil {
			b.Fatal(err)
		}
		bench(b, size, body, func() error { return pkg.Validate(vectorNow) })
	}
}

func BenchmarkEncodePackage(b *testing.B) {
	for _, size := range sizes {
		body := sized(b, size)
		pkg, err := protocol.DecodePackage(body)
		if err != nil {
			b.Fatal(err)
		}
		bench(b, size, body, func() error { _, err := protocol.EncodePackage(pkg); return err })
	}
}
