package cli

import (
	"reflect"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestParseKeyLimits(t *testing.T) {
	const model = "model:$.variables.model"
	for text, want := range map[string]protocol.KeyLimit{
		model + "=8":        {Key: model, MaxConcurrency: 8},
		model + "=60/1m":    {Key: model, Rate: 60, PerMS: 60_000},
		model + "=8,60/1m":  {Key: model, MaxConcurrency: 8, Rate: 60, PerMS: 60_000},
		"openai=1000/24h,1": {Key: "openai", MaxConcurrency: 1, Rate: 1000, PerMS: 86_400_000},
		"not a key=3":       {Key: "not a key", MaxConcurrency: 3}, // the profile refuses it
	} {
		if got, err := parseKeyLimits("limit_by", []string{text}); err != nil || !reflect.DeepEqual(got, []protocol.KeyLimit{want}) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"openai", "openai=", "openai=0", "openai=-1", "openai=x", "openai=8,9", "openai=1/1m,2/1m", "openai=60/", "openai=60/minute", "openai=,"} {
		if got, err := parseKeyLimits("limit_by", []string{text}); err == nil {
			t.Errorf("%s is %+v", text, got)
		}
	}
	if got, err := parseKeyLimits("limit_by", []string{""}); err != nil || got != nil {
		t.Errorf("of an empty text: %+v, %v", got, err)
	}
	for value, want := range map[string]string{`[{"key":"a"}]`: `[{"key":"a"}]`, `"a=1 b=2/1s"`: `[{"key":"a","max_concurrency":1},{"key":"b","rate":2,"per_ms":1000}]`, `""`: "null"} {
		if got, err := keyLimitsText([]byte(value)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", value, got, err)
		}
	}
}
