package natsgateway_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
)

var writeWire = flag.Bool("write-wire", false, "write testdata/wire.txt anew, where the wire is meant to change")

const wireFile = "testdata/wire.txt"

// wire collects the fields of all requests and answers: a verb, a direction, a path and a type a line.
type wire struct {
	mu    sync.Mutex
	verbs map[string]string // by reply subject
	seen  map[string]bool
}

// listen collects the wire of a world until its end.
func (f *wire) listen(w *world) {
	w.Helper()
	sub, err := w.nc.Subscribe(">", func(msg *nats.Msg) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if verb, of := f.verbs[msg.Subject]; of {
			f.add(verb+" <", msg)
		} else if rest, ok := strings.CutPrefix(msg.Subject, "handoff.v1."); ok {
			verb := rest[strings.LastIndex(rest, ".")+1:]
			f.verbs[msg.Reply] = verb
			f.add(verb+" >", msg)
		}
	})
	if err != nil {
		w.Fatal(err)
	}
	drained := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(drained) })
	w.Cleanup(func() {
		if err := errors.Join(w.nc.Flush(), sub.Drain()); err == nil {
			<-drained
		}
	})
}

func (f *wire) add(line string, msg *nats.Msg) {
	var body any
	if len(msg.Data) == 0 || json.Unmarshal(msg.Data, &body) != nil {
		f.seen[line+" (no JSON)"] = len(msg.Data) > 0
		return
	}
	f.walk(line, "", body)
}

// walk adds the fields of a value, but not those of documents with a page of their own.
func (f *wire) walk(line, path string, value any) {
	kind := "string"
	switch value := value.(type) {
	case map[string]any:
		if slices.Contains([]string{"package", "state", "profile", "result", "policy", "event", "events", "body", "update", "fleet", "workspace"}, path[strings.LastIndex(path, ".")+1:]) {
			kind = "document"
			break
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			f.walk(line, strings.TrimPrefix(path+"."+name, "."), value[name])
		}
		return
	case []any:
		for _, one := range value {
			f.walk(line, path+"[]", one)
		}
		return
	case float64:
		kind = "number"
	case bool:
		kind = "boolean"
	case nil:
		kind = "null"
	}
	f.seen[line+" "+cmp.Or(path, ".")+" "+kind] = true
}

// check: each field is in the golden file, and each verb of the file was used.
func (f *wire) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.seen, func(_ string, is bool) bool { return !is })
	got := slices.Sorted(maps.Keys(f.seen))
	if *writeWire {
		if err := os.WriteFile(wireFile, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(wireFile)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	used := map[string]bool{}
	for _, line := range got {
		verb, _, _ := strings.Cut(line, " ")
		used[verb] = true
		if _, is := slices.BinarySearch(want, line); !is {
			t.Errorf("the wire has a new field: %s (-write-wire writes the golden file)", line)
		}
	}
	for _, line := range want {
		if verb, _, _ := strings.Cut(line, " "); !used[verb] {
			t.Errorf("the wire has no %s, which the golden file has (-write-wire writes it)", verb)
			used[verb] = true
		}
	}
}
