package broker

import (
	"context"
	"encoding/json"

	"github.com/agenthandoff/handoff/protocol"
)

// readsOfContext is how many bodies of one context are read at most: one of a million messages has
// 15,626.
const readsOfContext = 20_000

// referContext has a package whose conversation goes by reference say where it lies. It returns that
// package, the bodies that Submit stores, and the package before that. Secrets are taken out first.
func (b *Broker) referContext(ctx context.Context, pkg protocol.Package) (small protocol.Package, bodies [][]byte, whole json.RawMessage, redacted int, err error) {
	if whole, redacted, err = b.encodePackage(ctx, pkg); err != nil {
		return pkg, nil, nil, 0, err
	}
	if small, err = protocol.DecodePackage(whole); err != nil {
		return pkg, nil, nil, 0, err
	}
	bodies, err = small.StoreContext()
	return small, bodies, whole, redacted, err
}

// storePackage stores a package that is large, after what it refers to.
func (b *Broker) storePackage(ctx context.Context, in Prepared) (storedBody, error) {
	if parts := in.parts; len(parts) > 0 {
		err := forEachParallel(ctx, submitsAtOnce, len(parts), func(ctx context.Context, i int) error {
			_, err := b.blobs.PutBlob(ctx, parts[i])
			return err
		})
		if err != nil {
			return storedBody{}, err
		}
	}
	return b.storeBody(ctx, in.Body, in.Package.GroupSize())
}

// Context returns the whole context of a handoff: the one that its package refers to, or the
// package's own. A context that lies in another system is not fetched: it is the package's own then.
// It takes a read for each 64 messages. The error is ErrNotFound where the handoff is not there, and
// a *protocol.Error with CodeNotFound where what it refers to is not.
func (b *Broker) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	body, err := b.Package(ctx, ticket)
	if err != nil {
		return protocol.Context{}, err
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return protocol.Context{}, err
	}
	ref, ours := protocol.ParseContextURL(pkg.Context.ContextURL)
	if !ours {
		return pkg.Context, nil
	}
	reads := 0
	return protocol.ReadContext(ref, func(ref protocol.BlobRef) ([]byte, error) {
		if reads++; reads > readsOfContext {
			return nil, protocol.Errorf(protocol.CodeTooLarge, "context.context_url", "has more than %d pieces", readsOfContext)
		}
		body, err := b.blobs.Blob(ctx, ref)
		if isAbsent(err) {
			err = protocol.Errorf(protocol.CodeNotFound, "context.context_url", "leads to what is not there, or not any more: %v", err)
		}
		return body, err
	})
}
