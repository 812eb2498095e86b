package redact

import (
	"strings"
	"testing"
)

// prose1KB is the text in the packages of handoff bench. It has no secret and a few of the
// keywords.
const prose1KB = "the login form keeps the session open after a password change so that a second tab still acts as the user who has left " +
	"please review the handler and its tests and say whether a token that was issued before the change is refused afterwards "

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		testRedactor(b)
	}
}

func BenchmarkPackage(b *testing.B) {
	r := testRedactor(b)
	clean := strings.Repeat("Please review the migration in pull request 4711; the tests of the 31st pass.\n", 50)
	const size = 64 << 20 // the largest body
	bodies := []struct {
		name string
		body func() []byte
	}{
		{"clean", func() []byte { return bodyWith(b, clean, "note") }},
		{"words", func() []byte { return bodyWith(b, clean+prose1KB, "note") }},
		{"secret", func() []byte { return bodyWith(b, clean+fill(secrets[2]), "note") }},
		{"words1KB", func() []byte { return bodyWith(b, strings.Repeat(prose1KB, 4)[:400], "note") }},
		{"64MiB/prose", func() []byte { return bodyOf(b, prose1KB, size) }},
		{"64MiB/code", func() []byte { return bodyOf(b, codeLines, size) }},
		{"64MiB/urls", func() []byte {
			return bodyOf(b, "see https://example.com/a/b?page=2 and http://localhost:8080/x, ", size)
		}},
		{"64MiB/log", func() []byte {
			return bodyOf(b, "2026-01-31T12:00:00Z INFO user=app token=a1b2c3d4e5f6 status=200 path=/x\n", size)
		}},
		{"64MiB/json", func() []byte {
			row := `{"id":4711,"name":"a name","key":"T-4711","token_count":17,"tags":["a","b"],"at":"2026-01-31T12:00:00Z"},`
			return []byte(`{"context":{"variables":{"rows":[` + strings.Repeat(row, size/len(row)) + `{}]}}}`)
		}},
		{"64MiB/json-secrets", func() []byte {
			row := `{"id":4711,"password":"swordfish","user":{"token":17}},`
			return []byte(`{"context":{"variables":{"rows":[` + strings.Repeat(row, size/len(row)) + `{}]}}}`)
		}},
		{"64MiB/base64", func() []byte { return bodyOf(b, image(), size) }},
	}
	for _, piece := range hostilePieces {
		bodies = append(bodies, struct {
			name string
			body func() []byte
		}{"64MiB/" + strings.NewReplacer("/", "|", " ", "_").Replace(piece), func() []byte { return bodyOf(b, piece, size) }})
	}
	for _, c := range bodies {
		b.Run(c.name, func(b *testing.B) {
			body := c.body()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				redacted(b, r, body)
			}
		})
	}
}

const codeLines = "func (s *server) login(w http.ResponseWriter, r *http.Request) {\n\tpassword := r.FormValue(\"password\")\n\tif err := s.check(r.Context(), password); err != nil {\n\t\t" +
	"http.Error(w, \"wrong password\", http.StatusUnauthorized)\n\t\treturn\n\t}\n\ttoken, err := s.sign(key, claims)\n}\n"

func bodyOf(t testing.TB, piece string, size int) []byte {
	text, _ := marshal(strings.Repeat(piece, size/len(piece)))
	return []byte(`{"reason":` + string(text) + `}`)
}
