package audit

import (
	"errors"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// digests checks that the packages in an append are those that it names, and, where
// bodies can be read, that each stored package or result has its digest. A body is read
// once, however many appends refer to it.
func (c *chains) digests(change protocol.Change, found func(Kind, string, ...any)) error {
	for _, e := range change.Record.Events {
		inline, ref := protocol.BodyOf(e)
		named := packageDigest(e)
		switch {
		case named == "":
		case ref != nil && ref.Digest != named:
			found(KindHash, "refers to the package %s, and says that it is %s", ref.Digest, named)
		case ref == nil && len(*inline) > 0 && broker.RefOf(*inline).Digest != named:
			found(KindHash, "holds another package than it says: it is %s, not %s", broker.RefOf(*inline).Digest, named)
		}
		if ref == nil || c.body == nil || c.bodies[*ref] {
			continue
		}
		c.bodies[*ref] = true
		err := c.body(*ref)
		var damaged *broker.DamagedBody
		switch {
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

// packageDigest is what an event says is the digest of the package that it holds or
// refers to; empty for a result, and for what holds none.
func packageDigest(e protocol.Event) string {
	switch e := e.(type) {
	case *protocol.Submitted:
		return e.Summary.Digest
	case *protocol.HandedOff:
		return e.Digest
	}
	return ""
}
