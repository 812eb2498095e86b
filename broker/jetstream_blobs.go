package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// blobPatience bounds the transfer of one body, tries included.
	blobPatience = 60 * time.Second
	// blobReads is how often a body that does not match is read again: it may
	// have been put anew while it was read, or a replica may lag.
	blobReads = 5
)

// PutBlob implements Engine. It takes up to 60 s, tries included.
func (j *JetStream) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	ref := RefOf(body)
	err := j.withBlobs(ctx, func(ctx context.Context, store jetstream.ObjectStore) error {
		info, err := store.GetInfo(ctx, ref.Digest)
		// One that stands is left alone, so that nobody who reads it is
		// disturbed, unless it is so old that it might not outlive a new reference.
		if err == nil && int64(info.Size) == ref.Size && time.Since(info.ModTime) < blobAge/2 {
			return nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			return err
		}
		_, err = store.PutBytes(ctx, ref.Digest, body)
		return err
	})
	if err != nil {
		return protocol.BlobRef{}, fmt.Errorf("put a body of %d bytes: %w", len(body), err)
	}
	return ref, nil
}

// Blob implements Engine. It takes up to 60 s, tries included.
func (j *JetStream) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	if !strings.HasPrefix(ref.Digest, digestPrefix) {
		return nil, fmt.Errorf("body %q: not a digest that Handoff makes: %w", ref.Digest, ErrNotFound)
	}
	var body []byte
	reads := 0
	err := j.withinBlobPatience(ctx, func(ctx context.Context) (err error) {
		body, err = j.readBlob(ctx, ref)
		if err == nil {
			if got := RefOf(body); got != ref {
				err = fmt.Errorf("what is stored has digest %s and %d bytes, not %d", got.Digest, got.Size, ref.Size)
			}
		}
		if reads++; err != nil && reads < blobReads && !passing(err) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotAllowed) {
			return fmt.Errorf("%w: %w", ErrUnreachable, err) // read it again
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("body %s of %d bytes: %w", ref.Digest, ref.Size, err)
	}
	return body, nil
}

// readBlob reads an object as the library stores it: its description, by name, and then
// its chunks one after another, all from the stream's leader. The library would make a
// consumer for them, for which a user needs the right to make any, with any name and
// any subject to deliver to.
func (j *JetStream) readBlob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	meta, err := j.get(ctx, blobStream, getRequest{LastFor: blobPrefix + "M." + base64.URLEncoding.EncodeToString([]byte(ref.Digest))})
	if err != nil {
		return nil, err
	}
	var object struct {
		ID      string `json:"nuid"`
		Chunks  int    `json:"chunks"`
		Deleted bool   `json:"deleted"`
	}
	switch err := json.Unmarshal(meta.Data, &object); {
	case err != nil:
		return nil, err
	case object.Deleted:
		return nil, ErrNotFound
	}
	var body []byte
	next := getRequest{Seq: 1, NextFor: blobPrefix + "C." + object.ID}
	for range object.Chunks {
		chunk, err := j.get(ctx, blobStream, next)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil, fmt.Errorf("a chunk is missing behind byte %d", len(body))
		case err != nil:
			return nil, err
		case int64(len(body)+len(chunk.Data)) > ref.Size:
			return nil, fmt.Errorf("what is stored has more than %d bytes", ref.Size)
		}
		body, next.Seq = append(body, chunk.Data...), chunk.Seq+1
	}
	return body, nil
}

func (j *JetStream) withBlobs(ctx context.Context, op func(context.Context, jetstream.ObjectStore) error) error {
	return j.withinBlobPatience(ctx, func(ctx context.Context) error {
		store, err := j.js.ObjectStore(ctx, BlobBucket)
		if err != nil {
			return err
		}
		return op(ctx, store)
	})
}

func (j *JetStream) withinBlobPatience(ctx context.Context, op func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, blobPatience)
	defer cancel()
	err := j.againEach(patient, blobPatience, func(ctx context.Context) error {
		return j.denied.ask(ctx, j.nc, blobPrefix, op)
	})
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return fmt.Errorf("%w: not done in %v: %w", ErrUnreachable, blobPatience, err)
	}
	return err
}
