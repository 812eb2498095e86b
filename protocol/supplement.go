package protocol

import (
	"encoding/json"
	"maps"
)

// Supplement lays the variables of answers over those of a package, the later
// over the earlier. The package's own map is not changed.
func (p *Package) Supplement(answers []Answer) {
	own := false
	for _, a := range answers {
		if len(a.Variables) == 0 {
			continue
		}
		if !own {
			p.Context.Variables, own = maps.Clone(p.Context.Variables), true
			if p.Context.Variables == nil {
				p.Context.Variables = map[string]json.RawMessage{}
			}
		}
		maps.Copy(p.Context.Variables, a.Variables)
	}
}
