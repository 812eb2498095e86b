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

// bodiesDir is the directory beside an archive's files for packages and results that are too large
// for the ledger. Each is named by its digest.
const bodiesDir = "bodies"

// bodyRefs are the references of a change to bodies in the object store.
func bodyRefs(c protocol.Change) []protocol.BlobRef {
	var refs []protocol.BlobRef
	for _, e := range c.Record.Events {
		if _, ref := protocol.BodyOf(e); ref != nil {
			refs = append(refs, *ref)
		}
	}
	return refs
}

// bodyPath is the file of a body; empty if the digest is invalid.
func bodyPath(dir string, ref protocol.BlobRef) string {
	digest, ok := strings.CutPrefix(ref.Digest, "sha256:")
	if raw, err := hex.DecodeString(digest); !ok || err != nil || len(raw) != sha256.Size {
		return ""
	}
	return filepath.Join(dir, bodiesDir, digest)
}

// copyBodies copies the bodies that an append refers to, before the append is added. VerifyFiles
// reports a body that the engine no longer has.
func (a *Archive) copyBodies(ctx context.Context, ledger Ledger, e broker.Entry) error {
	if !bytes.Contains(e.Body, []byte(`_blob":`)) { // most have none and need not be decoded
		return nil
	}
	change, err := broker.DecodeChange(e)
	if err != nil {
		return nil
	}
	for _, ref := range bodyRefs(change) {
		path := bodyPath(a.dir, ref)
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Size() == ref.Size {
			continue
		}
		body, err := ledger.Blob(ctx, ref)
		switch {
		case isTransient(err):
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

// writeBody writes a file atomically.
func writeBody(path string, body []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPattern)
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

// tempPattern matches bodies that are being written.
const tempPattern = ".new-*"

// removeTempFiles removes the unfinished bodies of a writer that died.
func removeTempFiles(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, bodiesDir, tempPattern))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// verifyBodies checks that an archive has the bodies of an append. It reads each body once.
func (v *fileVerifier) verifyBodies(change protocol.Change, at Problem) {
	for _, ref := range bodyRefs(change) {
		if v.digestsRead[ref.Digest] {
			continue
		}
		v.digestsRead[ref.Digest] = true
		path := bodyPath(filepath.Dir(v.files[0]), ref)
		if path == "" {
			v.addProblem(at, KindUnreadable, "refers to a body by %q, which is no digest", ref.Digest)
			continue
		}
		switch sum, err := fileDigest(path); {
		case errors.Is(err, os.ErrNotExist):
			v.addProblem(at, KindMissing, "refers to a package or result that is not in %s: %s", bodiesDir, ref.Digest)
		case err != nil:
			v.addProblem(at, KindUnreadable, "refers to a package or result that cannot be read: %v", err)
		case sum != ref.Digest:
			v.addProblem(at, KindHash, "refers to a package or result that was changed: %s", path)
		}
	}
}

func fileDigest(path string) (string, error) {
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
