// Package backup copies what cannot be made again off an engine, and puts it back:
// the ledger, the bodies it refers to, and the agents. Queues, timers and holders
// follow from these and are not in a backup.
//
// A backup is a directory with one folder a stream, each as the servers' own
// snapshots are (the nats command line reads them), and backup.json, which is
// written last: without it the directory is no backup. Sequences and time stamps
// come back as they were, since fences and offers are sequences.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	archive "github.com/nats-io/jsm.go/backup"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// manifestFile says what a backup consists of.
const manifestFile = "backup.json"

// format is the version of the manifest. A newer one is refused.
const format = 1

// Manifest is what backup.json holds.
type Manifest struct {
	Format int       `json:"format"`
	MadeAt time.Time `json:"made_at"`
	// Server is the version of NATS that made the snapshots. An older one may not
	// read them.
	Server  string   `json:"server"`
	Streams []Stream `json:"streams"`
}

// Stream is one stream of a backup.
type Stream struct {
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Messages uint64    `json:"messages"`
	LastSeq  uint64    `json:"last_seq"`
	Bytes    int64     `json:"bytes"` // of its files
	Files    []File    `json:"files"`
}

// File is one file of a stream, by its name below the stream's folder.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// Progress receives how many bytes of a stream are done. total may be an estimate, and is 0
// where it is not known. It is called from other goroutines, one at a time.
type Progress func(stream string, done, total uint64)

// requestWithin is how long a server may take to answer one request of ours. A
// check of all messages goes before the first byte of a snapshot.
const requestWithin = 2 * time.Minute

// Write makes a backup in dir, which must not exist or be empty. The engine stays in
// use meanwhile: the backup has everything that was acknowledged before it began.
// A directory that a failed Write leaves behind has no manifest. It blocks until all
// is on the disk or ctx ends.
func Write(ctx context.Context, nc *nats.Conn, dir string, tell Progress) (Manifest, error) {
	m := Manifest{Format: format, MadeAt: time.Now().UTC().Truncate(time.Second), Server: nc.ConnectedServerVersion()}
	if err := emptyDir(dir); err != nil {
		return m, err
	}
	engine, err := jsm.New(nc, jsm.WithTimeout(requestWithin))
	if err != nil {
		return m, err
	}
	// The ledger goes first: what an entry refers to is stored before the entry.
	for _, name := range jetstream.LastingStreams {
		s, err := writeStream(ctx, engine, filepath.Join(dir, name), name, tell)
		if err != nil {
			return m, fmt.Errorf("back up stream %s: %w", name, err)
		}
		m.Streams = append(m.Streams, s)
	}
	return m, writeManifest(dir, m)
}

func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err == nil && len(there) > 0 {
		err = protocol.Errorf(protocol.CodeConflict, "dir", "%s is not empty; a backup wants a directory of its own", dir)
	}
	return err
}

func writeStream(ctx context.Context, engine *jsm.Manager, dir, name string, tell Progress) (Stream, error) {
	s := Stream{Name: name}
	from, err := engine.LoadStream(name)
	if jsm.IsNatsError(err, uint16(nats.JSErrCodeStreamNotFound)) {
		return s, fmt.Errorf("%w: no such stream: make it: handoff topology ensure", broker.ErrNoTopology)
	}
	if err != nil {
		return s, err
	}
	info, err := from.Information()
	if err != nil {
		return s, err
	}
	s.Created = info.Created.UTC()
	whole := false
	for range snapshotTries {
		if whole, err = s.snapshot(ctx, from, dir, tell); err != nil {
			return s, err
		}
		if whole {
			break
		}
		if err := os.RemoveAll(dir); err != nil {
			return s, err
		}
	}
	if !whole {
		return s, fmt.Errorf("messages were replaced during each of %d snapshots; try again when less goes on", snapshotTries)
	}
	files, err := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		sum, n, err := digest(path)
		if err == nil {
			err = syncPath(path)
		}
		if err != nil {
			return s, err
		}
		s.Bytes += n
		s.Files = append(s.Files, File{Name: f.Name(), SHA256: sum})
	}
	return s, errors.Join(err, syncPath(dir))
}

// snapshotTries is how often a snapshot is taken, until one has all that was there when
// it began. A body that is put again replaces itself: the old one may be gone before
// the snapshot comes to it, and the new one come too late for it.
const snapshotTries = 20

// snapshot takes one, and tells whether nothing was lost meanwhile.
func (s *Stream) snapshot(ctx context.Context, from *jsm.Stream, dir string, tell Progress) (whole bool, err error) {
	_, err = from.SnapshotToDirectory(ctx, dir, jsm.SnapshotHealthCheck(), jsm.SnapshotNotify(func(p jsm.SnapshotProgress) {
		tell(s.Name, p.UncompressedBytesReceived(), p.BytesExpected())
	}))
	if err != nil {
		return false, err
	}
	var meta struct {
		State api.StreamState `json:"state"`
	}
	raw, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
	if err == nil {
		err = json.Unmarshal(raw, &meta)
	}
	if err != nil {
		return false, err
	}
	s.Messages, s.LastSeq = meta.State.Msgs, meta.State.LastSeq
	if _, err := os.Stat(filepath.Join(dir, jsm.SnapshotDataFile)); err != nil {
		return true, nil // of a server before 2.15, whose archives are not read here
	}
	report, err := archive.Verify(dir)
	if err != nil {
		return false, err
	}
	return report.Messages == s.Messages, nil
}

func digest(path string) (sum string, n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// syncPath puts a file, or the names in a directory, on the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func writeManifest(dir string, m Manifest) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, manifestFile)
	if err := os.WriteFile(path+".part", append(raw, '\n'), 0o600); err != nil {
		return err
	}
	if err := syncPath(path + ".part"); err != nil {
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	return syncPath(dir)
}

// Check reads a backup through: that it is whole, and as it was written.
func Check(dir string) (Manifest, error) {
	var m Manifest
	raw, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, protocol.Errorf(protocol.CodeInvalid, "dir", "%s has no %s: it is no backup, or one that was not finished", dir, manifestFile)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, protocol.Errorf(protocol.CodeMalformed, "dir", "%s: %v", filepath.Join(dir, manifestFile), err)
	}
	if m.Format != format {
		return m, protocol.Errorf(protocol.CodeVersion, "dir", "the backup has format %d, and this version reads %d; use the version that made it, or a newer one", m.Format, format)
	}
	for i, name := range jetstream.LastingStreams {
		if len(m.Streams) != len(jetstream.LastingStreams) || m.Streams[i].Name != name {
			return m, protocol.Errorf(protocol.CodeMalformed, "dir", "the backup does not name the streams %v", jetstream.LastingStreams)
		}
		for _, f := range m.Streams[i].Files {
			if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name {
				return m, protocol.Errorf(protocol.CodeMalformed, "dir", "the backup names a file %q outside of it", f.Name)
			}
			path := filepath.Join(dir, name, f.Name)
			sum, _, err := digest(path)
			if err == nil && sum != f.SHA256 {
				err = protocol.Errorf(protocol.CodeInvalid, "dir", "%s is not as it was written: nothing was restored; use another backup", path)
			}
			if err != nil {
				return m, err
			}
		}
	}
	return m, nil
}
