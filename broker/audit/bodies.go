package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// bodiesName is the directory beside an archive's files in which packages and
// results lie that are too large for the ledger, each under its digest.
const bodiesName = "bodies"

// bodiesOf are the bodies in the object store that a change refers to.
func bodiesOf(c protocol.Change) []protocol.BlobRef {
	var refs []protocol.BlobRef
	for _, e := range c.Record.Events {
		if _, ref := protocol.BodyOf(e); ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// bodyPath is where a body lies; empty where the digest is none.
func bodyPath(dir string, ref protocol.BlobRef) string {
	digest, ok := strings.CutPrefix(ref.Digest, "sha256:")
	if raw, err := hex.DecodeString(digest); !ok || err != nil || len(raw) != sha256.Size {
		return ""
	}
	return filepath.Join(dir, bodiesName, digest)
}

// keepBodies copies the bodies that an append refers to, before the append is
// taken up. One that the engine has no more is told of by VerifyFiles.
func (a *Archive) keepBodies(ctx context.Context, ledger Ledger, e broker.Entry) error {
	if !bytes.Contains(e.Body, []byte(`_blob":`)) { // most have none, and need not be read again
		return nil
	}
	change, err := broker.DecodeChange(e)
	if err != nil {
		return nil
	}
	for _, ref := range bodiesOf(change) {
		path := bodyPath(a.dir, ref)
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Size() == ref.Size {
			continue
		}
		body, err := ledger.Blob(ctx, ref)
		switch {
		case passing(err):
			return fmt.Errorf("body %s of entry %d: %w", ref.Digest, e.Seq, err)
		case err != nil:
			continue
		}
		if err := writeBody(path, body); err != nil {
			return err
		}
	}
	return nil
}

// writeBody makes a file that is there whole or not at all.
func writeBody(path string, body []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, unfinished)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return syncDir(dir)
}

// unfinished are bodies that were being written.
const unfinished = ".new-*"

// removeUnfinished takes away what a writer that died has left.
func removeUnfinished(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, bodiesName, unfinished))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// syncDir makes names in a directory outlive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// checkBodies looks for the bodies of an append in an archive, and reads each
// once.
func (v *verifier) checkBodies(change protocol.Change, at Problem) {
	for _, ref := range bodiesOf(change) {
		if v.bodies[ref.Digest] {
			continue
		}
		v.bodies[ref.Digest] = true
		path := bodyPath(filepath.Dir(v.files[0]), ref)
		if path == "" {
			v.found(at, KindUnreadable, "refers to a body by %q, which is no digest", ref.Digest)
			continue
		}
		switch sum, err := sumOf(path); {
		case errors.Is(err, os.ErrNotExist):
			v.found(at, KindMissing, "refers to a package or result that is not in %s: %s", bodiesName, ref.Digest)
		case err != nil:
			v.found(at, KindUnreadable, "refers to a package or result that cannot be read: %v", err)
		case sum != ref.Digest:
			v.found(at, KindHash, "refers to a package or result that was changed: %s", path)
		}
	}
}

func sumOf(path string) (string, error) {
	if err := checkRegular(path); err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
