package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// digests checks that the packages in an append are those that it names, and, where
// bodies can be read, that each stored package or result has its digest. A body is read
// once, however many appends refer to it.
func (c *chains) digests(change protocol.Change, found func(Kind, string, ...any)) error {
	for _, e := range change.Record.Events {
		inline, ref := protocol.BodyOf(e)
		named, ticket := packageDigest(e)
		switch {
		case named == "":
		case ref != nil && ref.Digest != named && !derived(ticket):
			found(KindHash, "refers to the package %s, and says that it is %s", ref.Digest, named)
		case ref == nil && len(*inline) > 0 && !isPackage(*inline, named, ticket):
			found(KindHash, "holds another package than it says: it is %s, not %s", broker.RefOf(*inline).Digest, named)
		}
		if ref == nil || c.body == nil || c.bodies[*ref] {
			continue
		}
		c.bodies[*ref] = true
		body, err := c.body(*ref)
		var damaged *jetstream.DamagedBody
		switch {
		case err == nil && (named == "" || isPackage(body, named, ticket)):
		case err == nil && derived(ticket): // else it is said above
			found(KindHash, "refers to the package %s, and says that it is %s", ref.Digest, named)
		case err == nil:
		case errors.As(err, &damaged):
			found(KindHash, "refers to a package or result that was changed: %s %s", ref.Digest, damaged.Error())
		case errors.Is(err, broker.ErrNotFound):
			found(KindMissing, "refers to a package or result that is not in the object store: %s", ref.Digest)
		default:
			return err
		}
	}
	return nil
}

// derived tells whether a ticket was made of a key or of another ticket (UUIDv5).
func derived(ticket string) bool {
	id, err := uuid.Parse(ticket)
	return err == nil && id.Version() == 5
}

// isPackage tells whether a package has a digest. Where its key made the ticket, the
// digest may be that of the package without created_at, which its program filled in.
func isPackage(body []byte, digest, ticket string) bool {
	if broker.RefOf(body).Digest == digest {
		return true
	}
	return derived(ticket) && broker.RefOf(withoutCreatedAt(body)).Digest == digest
}

// withoutCreatedAt cuts the field created_at out of a package, and leaves every other
// byte as it is.
func withoutCreatedAt(body []byte) []byte {
	fields := json.NewDecoder(bytes.NewReader(body))
	if open, err := fields.Token(); err != nil || open != json.Delim('{') {
		return body
	}
	first := fields.InputOffset()
	for fields.More() {
		from := fields.InputOffset() // a comma, but for the first
		name, err := fields.Token()
		if err != nil {
			return body
		}
		var value json.RawMessage
		if err := fields.Decode(&value); err != nil {
			return body
		}
		to := fields.InputOffset()
		if name != "created_at" {
			continue
		}
		if from == first && to < int64(len(body)) && body[to] == ',' {
			to++
		}
		return slices.Concat(body[:from], body[to:])
	}
	return body
}

// packageDigest is what an event says is the digest of the package that it holds or
// refers to, and of which handoff that is; empty for a result, and for what holds none.
func packageDigest(e protocol.Event) (digest, ticket string) {
	switch e := e.(type) {
	case *protocol.Submitted:
		return e.Summary.Digest, e.Ticket
	case *protocol.HandedOff:
		return e.Digest, e.Ticket
	}
	return "", ""
}
