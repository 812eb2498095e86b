package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// verifyDigests checks that a package in an append has the digest that the append names, and, if
// bodies can be read, that each stored package or result has its digest. It reads a body once,
// however many appends refer to it.
func (c *chainVerifier) verifyDigests(change protocol.Change, report func(Kind, string, ...any)) error {
	for _, e := range change.Record.Events {
		inline, ref := protocol.BodyOf(e)
		named, ticket := packageDigest(e)
		switch {
		case named == "":
		case ref != nil && ref.Digest != named && !isDerived(ticket):
			report(KindHash, "refers to the package %s, and names the digest %s", ref.Digest, named)
		case ref == nil && len(*inline) > 0 && !isPackage(*inline, named, ticket):
			report(KindHash, "the digest of its package is %s, and it names %s", broker.RefOf(*inline).Digest, named)
		}
		if ref == nil || c.readBody == nil || c.bodiesRead[*ref] {
			continue
		}
		c.bodiesRead[*ref] = true
		body, err := c.readBody(*ref)
		var damaged *jetstream.DamagedBody
		switch {
		case err == nil && (named == "" || isPackage(body, named, ticket)):
		case err == nil && isDerived(ticket): // otherwise reported above
			report(KindHash, "refers to the package %s, and names the digest %s", ref.Digest, named)
		case err == nil:
		case errors.As(err, &damaged):
			report(KindHash, "refers to a package or result that was changed: %s %s", ref.Digest, damaged.Error())
		case errors.Is(err, broker.ErrNotFound):
			report(KindMissing, "refers to a package or result that is not in the object store: %s", ref.Digest)
		default:
			return err
		}
	}
	return nil
}

// isDerived reports whether a ticket was derived from a key or from another ticket (UUIDv5).
func isDerived(ticket string) bool {
	id, err := uuid.Parse(ticket)
	return err == nil && id.Version() == 5
}

// isPackage reports whether a package has a digest. If its key made the ticket, the digest may be
// that of the package without created_at, which its program filled in.
func isPackage(body []byte, digest, ticket string) bool {
	if broker.RefOf(body).Digest == digest {
		return true
	}
	return isDerived(ticket) && broker.RefOf(withoutCreatedAt(body)).Digest == digest
}

// withoutCreatedAt removes the field created_at from a package, and keeps all other bytes.
func withoutCreatedAt(body []byte) []byte {
	fields := json.NewDecoder(bytes.NewReader(body))
	if open, err := fields.Token(); err != nil || open != json.Delim('{') {
		return body
	}
	first := fields.InputOffset()
	for fields.More() {
		from := fields.InputOffset() // at a comma, except for the first
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

// packageDigest returns the digest that an event names for its package, and the handoff of the
// package. Both are empty for a result and for an event without a body.
func packageDigest(e protocol.Event) (digest, ticket string) {
	switch e := e.(type) {
	case *protocol.Submitted:
		return e.Summary.Digest, e.Ticket
	case *protocol.HandedOff:
		return e.Digest, e.Ticket
	}
	return "", ""
}
