package output

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/agenthandoff/handoff/protocol"
)

// reported are the shapes in which programs and models report usage: our own, and those of
// the answers of models.
type reported struct {
	Usage struct {
		protocol.Usage
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
		Input      int64 `json:"input_tokens"`
		Output     int64 `json:"output_tokens"`
	} `json:"usage"`
	CostUSD float64 `json:"total_cost_usd"`
}

// Usage reads the usage in a JSON object: usage, in our own fields or as prompt_tokens,
// completion_tokens and total_tokens, or as input_tokens and output_tokens; and total_cost_usd. Nil
// is that it has none, or an impossible one.
func Usage(object []byte) *protocol.Usage {
	var r reported
	if !bytes.Contains(object, []byte(`"usage"`)) && !bytes.Contains(object, []byte(`"total_cost_usd"`)) || json.Unmarshal(object, &r) != nil {
		return nil
	}
	u := r.Usage.Usage
	u.TokensIn = max(u.TokensIn, r.Usage.Prompt, r.Usage.Input)
	u.TokensOut = max(u.TokensOut, r.Usage.Completion, r.Usage.Output)
	u.Tokens = max(u.Tokens, r.Usage.Total)
	if micros := math.Round(r.CostUSD * 1e6); micros > 0 && micros <= protocol.UsageMax {
		u.CostMicros = max(u.CostMicros, int64(micros))
	}
	if !protocol.IsModel(u.Model) {
		u.Model = ""
	}
	u.Normalize()
	if u.Validate() != nil {
		return nil
	}
	return &u
}

// LineUsage reads a line of a usage file: a usage, or an object with one.
func LineUsage(line []byte) *protocol.Usage {
	if u := Usage(line); u != nil {
		return u
	}
	return Usage(bytes.Join([][]byte{[]byte(`{"usage":`), []byte("}")}, line))
}

// foreign are the fields of usage that are not ours.
var foreign = []string{"prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"}

// maskUsage puts blanks in the place of a usage that is in the words of a model, and of
// total_cost_usd, so that the rest of the object can be read as a result. All else stays where it
// was. It returns the object itself where there is none.
func maskUsage(object []byte) []byte {
	if !bytes.Contains(object, []byte(`_tokens"`)) && !bytes.Contains(object, []byte(`"total_cost_usd"`)) { // as a rule
		return object
	}
	all := fields(object)
	_, cost := all["total_cost_usd"]
	usage := false
	for _, name := range foreign {
		_, has := fields(all["usage"])[name]
		usage = usage || has
	}
	if !usage && !cost {
		return object
	}
	masked := bytes.Clone(object)
	dec := json.NewDecoder(bytes.NewReader(object))
	_, _ = dec.Token()
	for first := true; dec.More(); {
		from := int(dec.InputOffset())
		name, _ := dec.Token()
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return object
		}
		to := int(dec.InputOffset())
		if usage && name == "usage" || name == "total_cost_usd" {
			if first && dec.More() { // the comma behind it goes, and not the one before it
				to += bytes.IndexByte(object[to:], ',') + 1
			}
			blank(masked, span{from, to})
			continue
		}
		first = false
	}
	return masked
}
