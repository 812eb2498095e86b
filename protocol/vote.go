package protocol

import "encoding/json"

// Vote is what a member of a group says to what was asked.
type Vote string

const (
	VoteYes Vote = "yes"
	VoteNo  Vote = "no"
)

// Vote returns the vote in the body of a result: {"vote": "yes"} or {"vote": "no"}. It is empty
// without one.
func (r *Result) Vote() Vote {
	var body struct {
		Vote Vote `json:"vote"`
	}
	if len(r.Body) == 0 || r.Body[0] != '{' || json.Unmarshal(r.Body, &body) != nil {
		return ""
	}
	switch body.Vote {
	case VoteYes, VoteNo:
		return body.Vote
	}
	return ""
}
