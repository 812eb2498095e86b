package protocol

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A transfer by reference stores the context of a package apart from the ledger, and the package
// has its URL (the fourth document). The conversation is stored in pieces, so that the parts of a
// growing conversation are stored once.

const (
	// contextScheme begins the URL of a context that Handoff stores: context://sha256:HEX/BYTES.
	contextScheme = "context://"
	// contextPieceMessages is how many messages a piece of a stored conversation has.
	contextPieceMessages = 64

	// The first lines of stored contexts. They ensure that no digest of a package or a result is the
	// URL of a context.
	contextHeader  = "context/1\n"
	messagesHeader = "messages/1\n"
)

// storedContext is the body under the URL of a context, after contextHeader.
type storedContext struct {
	Context json.RawMessage `json:"context"` // without its conversation
	Pieces  []BlobRef       `json:"pieces,omitempty"`
}

// ContextURL returns the URL of a stored context.
func ContextURL(of BlobRef) string { return fmt.Sprintf("%s%s/%d", contextScheme, of.Digest, of.Size) }

// ParseContextURL parses the URL of a context. ok is false for the URL of another system, which the
// target fetches itself.
func ParseContextURL(url string) (ref BlobRef, ok bool) {
	rest, ours := strings.CutPrefix(url, contextScheme+DigestPrefix)
	digest, size, sized := strings.Cut(rest, "/")
	if raw, err := hex.DecodeString(digest); !ours || !sized || err != nil || len(raw) != 32 || digest != strings.ToLower(digest) {
		return BlobRef{}, false
	}
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 0 || n > PackageBytesMax || strconv.FormatInt(n, 10) != size {
		return BlobRef{}, false
	}
	return BlobRef{Digest: DigestPrefix + digest, Size: n}, true
}

// GoesByReference reports whether the conversation of a package is to be stored: its mode is
// reference, and the package has no address for it.
func (p *Package) GoesByReference() bool {
	c := &p.Context
	return c.HistoryTransfer.Mode == TransferReference && c.ContextURL == "" && len(c.ConversationHistory) > 0
}

// StoreContext replaces the conversation by the URL of the context and key points
// (GoesByReference). It returns the bodies that must first be stored under their digests; an equal
// context yields the same bodies.
func (p *Package) StoreContext() (bodies [][]byte, err error) {
	whole := p.Context
	var stored storedContext
	for piece := range slices.Chunk(whole.ConversationHistory, contextPieceMessages) {
		body := append([]byte(messagesHeader+"["), bytes.Join(asBytes(piece), []byte(","))...)
		body = append(body, ']')
		bodies = append(bodies, body)
		stored.Pieces = append(stored.Pieces, BlobRef{Digest: Digest(body), Size: int64(len(body))})
	}
	whole.ConversationHistory, whole.HistoryTransfer = nil, HistoryTransfer{}
	if stored.Context, err = Marshal(whole); err != nil {
		return nil, err
	}
	body, err := Marshal(stored)
	if err != nil {
		return nil, err
	}
	body = append([]byte(contextHeader), body...)
	p.CutConversation()
	p.Context.ContextURL = ContextURL(BlobRef{Digest: Digest(body), Size: int64(len(body))})
	return append(bodies, body), nil
}

// ReadContext reads a stored context and its pieces. read returns a body by its reference;
// ReadContext returns its errors unchanged. A body that is no context is a *Error with
// CodeUnreadable.
func ReadContext(of BlobRef, read func(BlobRef) ([]byte, error)) (Context, error) {
	none := func(why error) (Context, error) {
		return Context{}, Errorf(CodeUnreadable, "context.context_url", "leads to no context: %v", why)
	}
	body, err := read(of)
	if err != nil {
		return Context{}, err
	}
	rest, is := bytes.CutPrefix(body, []byte(contextHeader))
	if !is {
		return none(fmt.Errorf("%s is another body", of.Digest))
	}
	var stored storedContext
	if err := json.Unmarshal(rest, &stored); err != nil {
		return none(err)
	}
	pkg, err := DecodePackage(slices.Concat([]byte(`{"context":`), stored.Context, []byte(`}`)))
	if err != nil {
		return none(err)
	}
	c := pkg.Context
	left := int64(PackageBytesMax)
	for _, ref := range stored.Pieces {
		if left -= ref.Size; ref.Size < 0 || left < 0 {
			return none(fmt.Errorf("its pieces have more than %d bytes", PackageBytesMax))
		}
		piece, err := read(ref)
		if err != nil {
			return Context{}, err
		}
		rest, is := bytes.CutPrefix(piece, []byte(messagesHeader))
		if !is {
			return none(fmt.Errorf("%s is no piece of a conversation", ref.Digest))
		}
		var messages []Message
		if err := json.Unmarshal(rest, &messages); err != nil {
			return none(err)
		}
		c.ConversationHistory = append(c.ConversationHistory, messages...)
	}
	return c, nil
}

func asBytes(messages []Message) [][]byte {
	all := make([][]byte, len(messages))
	for i, message := range messages {
		all[i] = message
	}
	return all
}
