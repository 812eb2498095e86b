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

// A transfer by reference: the context of a package is stored beside the ledger, and the package has
// its URL (the fourth document). The conversation lies there in pieces, so that a conversation that
// grows from handoff to handoff is stored once.

const (
	// ContextScheme begins the URL of a context that Handoff stores: context://sha256:HEX/BYTES.
	ContextScheme = "context://"
	// ContextPieceMessages is how many messages a piece of a stored conversation has.
	ContextPieceMessages = 64

	// A stored context begins with these, so that no digest of a package or a result is the URL of one.
	contextHeader  = "context/1\n"
	messagesHeader = "messages/1\n"
)

// storedContext is what stands under the URL of a context, behind contextHeader.
type storedContext struct {
	Context json.RawMessage `json:"context"` // without its conversation
	Pieces  []BlobRef       `json:"pieces,omitempty"`
}

// ContextURL returns the URL of a stored context.
func ContextURL(of BlobRef) string { return fmt.Sprintf("%s%s/%d", ContextScheme, of.Digest, of.Size) }

// ParseContextURL returns what the URL of a context refers to. ok is false for the URL of another
// system, which is the target's to fetch.
func ParseContextURL(url string) (ref BlobRef, ok bool) {
	rest, ours := strings.CutPrefix(url, ContextScheme+DigestPrefix)
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

// GoesByReference tells whether the conversation of a package is to be stored: it is to go by
// reference, and the package does not say where it lies.
func (p *Package) GoesByReference() bool {
	c := &p.Context
	return c.HistoryTransfer.Mode == TransferReference && c.ContextURL == "" && len(c.ConversationHistory) > 0
}

// StoreContext puts the URL of the context and key points in the place of the conversation
// (GoesByReference). It returns the bodies that have to be stored under their digests first; the
// same context makes the same ones.
func (p *Package) StoreContext() (bodies [][]byte, err error) {
	whole := p.Context
	var stored storedContext
	for piece := range slices.Chunk(whole.ConversationHistory, ContextPieceMessages) {
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

// ReadContext reads a stored context and its pieces. read returns a body by its reference, and
// ReadContext passes its errors on. A body that is no context is a *Error with CodeUnreadable.
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
