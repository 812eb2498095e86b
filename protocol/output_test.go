package protocol_test

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestResultFromOutput(t *testing.T) {
	for name, c := range map[string]struct{ out, contentType, body, aside string }{
		"nothing":           {"", "", "", ""},
		"white space":       {" \n\n", "", "", ""},
		"text":              {"looks good\n", "text", `"looks good"`, ""},
		"lines":             {"  a\n<b> & \"c\"\r\n\r\n", "text", `"  a\n<b> & \"c\""`, ""},
		"number":            {"42\n", "json", "42", ""},
		"list":              {" [1, 2.50]\n", "json", "[1, 2.50]", ""},
		"json text":         {`"hi"`, "text", `"hi"`, ""},
		"null":              {"null", "", "", ""},
		"free object":       {`{"score": 9}`, "json", `{"score": 9}`, ""},
		"mixed object":      {`{"body": 1, "score": 9}`, "json", `{"body": 1, "score": 9}`, ""},
		"empty object":      {"{}", "json", "{}", ""},
		"result":            {`{"status":"partial","body":{"a":1}}`, "json", `{"a":1}`, ""},
		"result text":       {`{"body":"hi"}`, "text", `"hi"`, ""},
		"nearly a result":   {`{"status":"ok"}`, "json", `{"status":"ok"}`, "status: must be one of"},
		"wrong type":        {`{"usage":{"tokens":"many"}}`, "json", `{"usage":{"tokens":"many"}}`, "usage.tokens: must be a whole number"},
		"two documents":     {"{\"a\":1}\n{\"a\":2}\n", "text", `"{\"a\":1}\n{\"a\":2}"`, ""},
		"broken json":       {`{"a":`, "text", `"{\"a\":"`, ""},
		"byte order mark":   {"\xEF\xBB\xBF[1]", "json", "[1]", ""},
		"no utf-8":          {"caf\xe9\x00!", "text", "\"caf\ufffd\ufffd!\"", "2 bytes of the output"},
		"nul inside json":   {`{"a":"\u0000"}`, "text", `"{\"a\":\"\\u0000\"}"`, ""},
		"too deep for json": {strings.Repeat("[", 200) + strings.Repeat("]", 200), "text", `"` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `"`, ""},
	} {
		r := protocol.ResultFromOutput([]byte(c.out))
		if r.ContentType != c.contentType || string(r.Body) != c.body || !strings.Contains(r.SetAside, c.aside) || (r.SetAside == "") != (c.aside == "") {
			t.Errorf("%s: %+v (body %s), want %+v", name, r, r.Body, c)
		}
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := protocol.ResultFromOutput([]byte(`{"status":"partial","body":"x"}`)); r.Status != protocol.Partial {
		t.Errorf("%+v", r)
	}
}
