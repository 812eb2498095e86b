package jetstream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// blobPatience bounds the transfer of one body, tries included.
	blobPatience = 60 * time.Second
	// blobTry is how long the first try at putting one may take; each further one may
	// take twice as long. One that begins as the leader dies gets no answer.
	blobTry = 4 * time.Second
	// blobReads is how often a body that does not match is read again: it may
	// have been put anew while it was read, or a replica may lag.
	blobReads = 5
)

// PutBlob implements broker.Engine. It takes up to 60 s, tries included. What stands under the
// digest already is read once by each process: where it is not the body, the body
// replaces it.
func (j *Engine) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	ref := broker.RefOf(body)
	err := j.withBlobs(ctx, func(ctx context.Context, store jetstream.ObjectStore) error {
		object, err := j.blobObject(ctx, ref)
		switch {
		case err == nil && j.blobExists(ctx, ref, object):
			return nil
		case isError[*DamagedBody](err):
			// The library does not replace a description that it can't read, and
			// trusts the others with which chunks to purge.
			if err := j.dropBlobObject(ctx, ref); err != nil {
				return err
			}
		case err != nil && !errors.Is(err, broker.ErrNotFound):
			return err
		}
		info, err := store.PutBytes(ctx, ref.Digest, body)
		if err == nil {
			j.bodies.add(ref.Digest, info.NUID)
		}
		return err
	})
	if err != nil {
		return protocol.BlobRef{}, fmt.Errorf("put a body of %d bytes: %w", len(body), err)
	}
	return ref, nil
}

// blobExists tells whether a body is there under its digest, and will outlive a new
// reference. Then it is left alone, so that no reader is disturbed.
func (j *Engine) blobExists(ctx context.Context, ref protocol.BlobRef, object jetstream.ObjectInfo) bool {
	if time.Since(object.ModTime) >= blobAge/2 {
		return false
	}
	if j.bodies.has(ref.Digest, object.NUID) {
		return true
	}
	stored, err := j.readChunks(ctx, ref, object)
	if err != nil || broker.RefOf(stored) != ref {
		return false
	}
	j.bodies.add(ref.Digest, object.NUID)
	return true
}

// DamagedBody says that something else is stored under a digest than the body, or not
// all of it. It is an ErrNotFound.
type DamagedBody struct {
	Ref  protocol.BlobRef
	What string // is wrong
}

func (e *DamagedBody) Error() string { return "is damaged in the object store: " + e.What }
func (e *DamagedBody) Unwrap() error { return broker.ErrNotFound }

func damagedError(ref protocol.BlobRef, format string, args ...any) error {
	return &DamagedBody{ref, fmt.Sprintf(format, args...)}
}

func isError[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// Blob implements broker.Engine. It takes up to 60 s, tries included. A body that is not what
// its digest says is read 5 times, and then a *DamagedBody.
func (j *Engine) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	if !strings.HasPrefix(ref.Digest, protocol.DigestPrefix) {
		return nil, fmt.Errorf("body %q: not a digest that Handoff makes: %w", ref.Digest, broker.ErrNotFound)
	}
	var body []byte
	reads := 0
	err := j.retryBlob(ctx, func(ctx context.Context) (err error) {
		body, err = j.readBlob(ctx, ref)
		if isError[*DamagedBody](err) {
			if reads++; reads < blobReads {
				return fmt.Errorf("%w: %v", broker.ErrUnreachable, err) // read it again
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("body %s of %d bytes: %w", ref.Digest, ref.Size, err)
	}
	return body, nil
}

// blobID is what the library calls the chunks of a body.
var blobID = regexp.MustCompile(`^[0-9A-Za-z]{22}$`)

func blobSubject(ref protocol.BlobRef) string {
	return blobPrefix + "M." + base64.URLEncoding.EncodeToString([]byte(ref.Digest))
}

// blobObject reads the description of a body, as the library does; ErrNotFound, and a
// *DamagedBody where it is none.
func (j *Engine) blobObject(ctx context.Context, ref protocol.BlobRef) (jetstream.ObjectInfo, error) {
	var object jetstream.ObjectInfo
	meta, err := j.getMessage(ctx, blobStream, getRequest{LastFor: blobSubject(ref)})
	if err != nil {
		return object, err
	}
	err = json.Unmarshal(meta.Data, &object)
	switch object.ModTime = meta.Time; {
	case err != nil:
		return object, damagedError(ref, "its description at %d can't be read: %v", meta.Seq, err)
	case object.Deleted:
		return object, broker.ErrNotFound
	case !blobID.MatchString(object.NUID):
		return object, damagedError(ref, "its description at %d names no chunks", meta.Seq)
	}
	return object, nil
}

// dropBlobObject replaces a description that the library must not see by that of a body
// that was deleted.
func (j *Engine) dropBlobObject(ctx context.Context, ref protocol.BlobRef) error {
	body, err := json.Marshal(map[string]any{"name": ref.Digest, "bucket": BlobBucket, "deleted": true})
	if err != nil {
		return err
	}
	msg := nats.NewMsg(blobSubject(ref))
	msg.Data = body
	msg.Header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err = j.publish(ctx, msg)
	return err
}

// readBlob reads a body as the library stores it: its description, by name, and then
// its chunks one after another, all from the stream's leader. The library would make a
// consumer for them, for which a user needs the right to make any, with any name and
// any subject to deliver to.
func (j *Engine) readBlob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	object, err := j.blobObject(ctx, ref)
	if err != nil {
		return nil, err
	}
	body, err := j.readChunks(ctx, ref, object)
	if err != nil {
		return nil, err
	}
	if got := broker.RefOf(body); got != ref {
		return nil, damagedError(ref, "what is stored has digest %s and %d bytes, not %d", got.Digest, got.Size, ref.Size)
	}
	return body, nil
}

func (j *Engine) readChunks(ctx context.Context, ref protocol.BlobRef, object jetstream.ObjectInfo) ([]byte, error) {
	var body []byte
	next := getRequest{Seq: 1, NextFor: blobPrefix + "C." + object.NUID}
	for range object.Chunks {
		chunk, err := j.getMessage(ctx, blobStream, next)
		switch {
		case errors.Is(err, broker.ErrNotFound):
			return nil, damagedError(ref, "a chunk is missing behind byte %d", len(body))
		case err != nil:
			return nil, err
		case int64(len(body)+len(chunk.Data)) > min(ref.Size, bodyBytesMax):
			return nil, damagedError(ref, "what is stored has more than %d bytes", min(ref.Size, bodyBytesMax))
		}
		body, next.Seq = append(body, chunk.Data...), chunk.Seq+1
	}
	return body, nil
}

// bodyBytesMax is the largest body that is read.
const bodyBytesMax = max(protocol.PackageBytesMax, protocol.ResultBytesMax)

// knownBodiesMax is how many bodies a process remembers to be stored as they should be.
const knownBodiesMax = 4_096

// knownBodies are bodies that this process has stored, or has read back: by digest the
// id of their chunks.
type knownBodies struct {
	mu  sync.Mutex
	ids map[string]string
}

func (k *knownBodies) has(digest, id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ids[digest] == id
}

func (k *knownBodies) add(digest, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ids == nil || len(k.ids) >= knownBodiesMax {
		k.ids = map[string]string{}
	}
	k.ids[digest] = id
}

func (j *Engine) withBlobs(ctx context.Context, op func(context.Context, jetstream.ObjectStore) error) error {
	each := blobTry
	return j.retryBlob(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		each *= 2
		store, err := j.js.ObjectStore(ctx, BlobBucket)
		if err != nil {
			return err
		}
		return op(ctx, store)
	})
}

func (j *Engine) retryBlob(ctx context.Context, op func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, blobPatience)
	defer cancel()
	err := j.retryEach(patient, blobPatience, func(ctx context.Context) error {
		return j.denied.watchWhile(ctx, j.nc, blobPrefix, op)
	})
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return fmt.Errorf("%w: not done in %v: %w", broker.ErrUnreachable, blobPatience, err)
	}
	return err
}
