package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Previous is the result of the handoff that a package follows from by goto: of the link before
// in a chain, and of no other link. A result that says nothing makes none.
type Previous struct {
	Agent   string          `json:"agent"`
	Ticket  string          `json:"ticket"`
	Summary string          `json:"summary,omitempty"` // cut at PreviousSummaryBytesMax
	Body    json.RawMessage `json:"body,omitempty"`
	// BodyDigest and BodyBytes stand for a body over PreviousBodyBytesMax: Digest of its JSON as
	// the result of Ticket has it, and the length of that.
	BodyDigest string    `json:"body_digest,omitempty"`
	BodyBytes  int64     `json:"body_bytes,omitempty"`
	Artifacts  Artifacts `json:"artifacts,omitzero"` // none where they are over PreviousArtifactsBytesMax
}

// previousOf makes what the next agent gets of a result; nil where that says nothing.
func previousOf(agent, ticket string, result Result) *Previous {
	if len(result.Body) == 0 && result.Summary == "" && result.Artifacts.IsZero() {
		return nil
	}
	p := &Previous{Agent: agent, Ticket: ticket, Body: result.Body, Summary: CutText(result.Summary, PreviousSummaryBytesMax)}
	if size := len(result.Body); size > PreviousBodyBytesMax {
		p.Body, p.BodyDigest, p.BodyBytes = nil, Digest(result.Body), int64(size)
	}
	if result.Artifacts.size() <= PreviousArtifactsBytesMax {
		p.Artifacts = result.Artifacts
	}
	return p
}

func checkPrevious(p *Previous) *Error {
	if p == nil {
		return nil
	}
	const field = "context.previous"
	if err := checkID(field+".agent", p.Agent); err != nil {
		return err
	}
	if _, err := ParseTicket(p.Ticket); err != nil {
		return Errorf(CodeInvalid, field+".ticket", "is not a ticket; it is that of the handoff that had the result")
	}
	if len(p.Body) > 0 && p.BodyDigest != "" {
		return Errorf(CodeConflict, field+".body_digest", "stands for a body that is left out; here it is")
	}
	if err := between(field+".body_bytes", p.BodyBytes, 0, ResultBytesMax); err != nil {
		return err
	}
	return checkArtifacts(field+".artifacts", p.Artifacts)
}

// DigestPrefix begins every digest, so that another hash may come one day.
const DigestPrefix = "sha256:"

// Digest is the digest of a body.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	var text [len(DigestPrefix) + 2*sha256.Size]byte
	hex.Encode(text[copy(text[:], DigestPrefix):], sum[:])
	return string(text[:])
}
