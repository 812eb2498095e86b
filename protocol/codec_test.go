package protocol_test

import (
	"encoding/json"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestArtifacts(t *testing.T) {
	for in, want := range map[string]string{
		`[{"path":"b"},{"path":"a"}]`: `[{"path":"b"},{"path":"a"}]`,
		` {"b":"x","a":null} `:        `{"a":null,"b":"x"}`,
		`{}`:                          `{}`,
		`[]`:                          `[]`,
		`{"<&>":"<&>"}`:               `{"<&>":"<&>"}`,
	} {
		r, err := protocol.DecodeResult([]byte(`{"artifacts":` + in + `}`))
		if err != nil {
			t.Fatal(err)
		}
		out, err := protocol.EncodeResult(r)
		if err != nil || string(out) != `{"artifacts":`+want+`}` {
			t.Errorf("%s becomes %s (%v)", in, out, err)
		}
	}
	out, err := protocol.EncodeResult(protocol.Result{})
	if err != nil || string(out) != "{}" {
		t.Errorf("no artifacts: %s, %v", out, err)
	}
	path := "x"
	both := protocol.Artifacts{List: []protocol.Artifact{{ID: "1"}}, ByName: map[string]*string{"b": nil, "a": &path}}
	if body, err := json.Marshal(both); err != nil || string(body) != `[{"id":"1"},{"name":"a","path":"x"},{"name":"b"}]` {
		t.Errorf("both forms: %s, %v", body, err)
	}
	if all := both.All(); len(all) != 3 || len(both.List) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestGoto(t *testing.T) {
	for in, want := range map[string]string{
		``:                                     `null`,
		`null`:                                 `null`,
		`"a"`:                                  `[{"agent":"a"}]`,
		`["a","b"]`:                            `[{"agent":"a"},{"agent":"b"}]`,
		`[{"agent":"a","update":{"t":1}},"b"]`: `[{"agent":"a","update":{"t":1}},{"agent":"b"}]`,
		`{"agent":"a"}`:                        `[{"agent":"a"}]`,
		`[]`:                                   `[]`,
	} {
		command := protocol.Command{Goto: json.RawMessage(in)}
		targets, err := command.Targets()
		if got, _ := json.Marshal(targets); err != nil || string(got) != want {
			t.Errorf("%s becomes %s (%v)", in, got, err)
		}
		if string(command.Goto) != in {
			t.Errorf("reading changed the command: %s", command.Goto)
		}
	}
}

func TestCapabilities(t *testing.T) {
	p, err := protocol.DecodeProfile([]byte(`{"id":"a","capabilities":["x",{"id":"y"},{"id":"z","proficiency":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []protocol.Capability{{ID: "x", Proficiency: 1}, {ID: "y", Proficiency: 1}, {ID: "z"}}
	for i := range want {
		if p.Capabilities[i] != want[i] {
			t.Errorf("%+v, want %+v", p.Capabilities[i], want[i])
		}
	}
}
