package schema

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// A panic of the library is the result's, and the process goes on.
func TestPanicOfTheLibrary(t *testing.T) {
	ready, err := compile(json.RawMessage(`{"multipleOf": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	ready.check.MultipleOf = new(big.Rat) // which it divides by
	var e *protocol.Error
	err = output.verdict(ready.validate(json.Number("4")))
	if !errors.As(err, &e) || e.Code != protocol.CodeOutputSchema || e.Field != resultField || !strings.Contains(e.Message, "division by zero") {
		t.Errorf("%v", err)
	}
	if _, err = new(meter).compile(map[string]any{"properties": map[string]any{"a": make(chan int)}}); err == nil {
		t.Error("what is no JSON was compiled")
	}
}
