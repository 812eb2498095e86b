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
	// blobPatience bounds the transfer of one body, including retries.
	blobPatience = 60 * time.Second
	// blobTry bounds the first try at storing one; each further try may take twice as long. A try
	// during the death of the leader gets no answer.
	blobTry = 4 * time.Second
	// blobReads is how often a body that does not match its digest is reread: it may have been replaced
	// during the read, or a replica may lag.
	blobReads = 5
)

// PutBlob implements broker.Engine. It takes up to 60 s, including retries. An existing body with
// the digest is read once by each process. If it differs, it is replaced.
func (j *Engine) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	ref := broker.RefOf(body)
	each := blobTry
	err := j.retryBlob(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		each *= 2
		store, err := j.js.ObjectStore(ctx, BlobBucket)
		if err != nil {
			return err
		}
		object, err := j.blobObject(ctx, ref)
		switch {
		case err == nil && j.blobExists(ctx, ref, object):
			return nil
		case isError[*DamagedBody](err):
			// The library does not replace a description that it can't read, and purges the chunks that any
			// other description names.
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

// blobExists reports whether a body is stored under its digest, and will outlive a new reference.
// Then it is not rewritten, so that no reader is disturbed.
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

// DamagedBody reports that the bytes under a digest are not the body, or not all of it. It is an
// ErrNotFound.
type DamagedBody struct {
	Ref  protocol.BlobRef
	What string // the fault
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

// Blob implements broker.Engine. It takes up to 60 s, including retries. A body that does not match
// its digest is read 5 times before it is a *DamagedBody.
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
				return fmt.Errorf("%w: %v", broker.ErrUnreachable, err) // reread it
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("body %s of %d bytes: %w", ref.Digest, ref.Size, err)
	}
	return body, nil
}

// HasBlob implements broker.Engine.
func (j *Engine) HasBlob(ctx context.Context, ref protocol.BlobRef) error {
	err := j.retryBlob(ctx, func(ctx context.Context) error { _, err := j.blobObject(ctx, ref); return err })
	return inContext(err, "body %s of %d bytes", ref.Digest, ref.Size)
}

// blobID matches the library's ids of the chunks of a body.
var blobID = regexp.MustCompile(`^[0-9A-Za-z]{22}$`)

func blobSubject(ref protocol.BlobRef) string {
	return blobPrefix + "M." + base64.URLEncoding.EncodeToString([]byte(ref.Digest))
}

// blobObject reads the description of a body, like the library. It returns ErrNotFound, or a
// *DamagedBody if the description is invalid.
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

// dropBlobObject replaces a description that the library must not see by that of a deleted body.
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

// readBlob reads a body as the library stores it: its description, by name, and then its chunks one
// after another, all from the stream's leader. The library would create a consumer for them. For
// that a user needs the permission to create consumers with any name and any delivery subject.
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
		return nil, damagedError(ref, "the stored bytes have digest %s and length %d, not %d", got.Digest, got.Size, ref.Size)
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
			return nil, damagedError(ref, "a chunk is missing after byte %d", len(body))
		case err != nil:
			return nil, err
		case int64(len(body)+len(chunk.Data)) > min(ref.Size, bodyBytesMax):
			return nil, damagedError(ref, "more than %d bytes are stored", min(ref.Size, bodyBytesMax))
		}
		body, next.Seq = append(body, chunk.Data...), chunk.Seq+1
	}
	return body, nil
}

// bodyBytesMax is the largest body that is read.
const bodyBytesMax = max(protocol.PackageBytesMax, protocol.ResultBytesMax)

// knownBodiesMax is how many bodies a process remembers as intact.
const knownBodiesMax = 4_096

// knownBodies are bodies that this process has stored or verified: by digest the id of their
// chunks.
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

func (j *Engine) retryBlob(ctx context.Context, op func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, blobPatience)
	defer cancel()
	err := j.retryEach(patient, blobPatience, func(ctx context.Context) error {
		err := j.denied.watchWhile(ctx, j.nc, blobPrefix, op)
		if hasCode(err, codeNoStream) || errors.Is(err, jetstream.ErrBucketNotFound) {
			_ = j.recreate(ctx) // otherwise a supervisor does
			err = fmt.Errorf("%w: %v", broker.ErrUnreachable, err)
		}
		return err
	})
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return fmt.Errorf("%w: not done in %v: %w", broker.ErrUnreachable, blobPatience, err)
	}
	return err
}
