// Package backup writes and restores the data of an engine that cannot be derived: the ledger,
// the bodies that it refers to, and the agents. Queues, timers and holders follow from
// these and are not in a backup.
//
// A backup is a directory with one folder per stream, each a snapshot of the server (the
// nats command line reads them), and backup.json, which is written last: a directory
// without it is no backup. Sequences and timestamps are restored, because fences and
// offers are sequences.
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
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// manifestFile lists the contents of a backup.
const manifestFile = "backup.json"

// format is the version of the manifest. A newer one is refused.
const format = 1

// Manifest is the content of backup.json.
type Manifest struct {
	Format int       `json:"format"`
	MadeAt time.Time `json:"made_at"`
	// Server is the version of NATS that wrote the snapshots. An older server may not read them.
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

// Progress receives how many bytes of a stream are done. total may be an estimate, and is 0 if it
// is unknown. It is called from other goroutines, one at a time.
type Progress func(stream string, done, total uint64)

// requestTimeout is how long a server may take to answer one request. It checks all messages
// before the first byte of a snapshot.
const requestTimeout = 2 * time.Minute

// Write writes a backup to dir, which must not exist or be empty. The engine stays in use: the
// backup has everything that was acknowledged before the call. A directory that a failed Write
// leaves has no manifest. Write blocks until everything is durable or ctx ends.
func Write(ctx context.Context, nc *nats.Conn, dir string, progress Progress) (Manifest, error) {
	m := Manifest{Format: format, MadeAt: time.Now().UTC().Truncate(time.Second), Server: nc.ConnectedServerVersion()}
	if err := createEmptyDir(dir); err != nil {
		return m, err
	}
	engine, err := jsm.New(nc, jsm.WithTimeout(requestTimeout))
	if err != nil {
		return m, err
	}
	partitions, err := partitionsOf(engine)
	if err != nil {
		return m, err
	}
	// The ledger goes first: a body is stored before the entry that refers to it.
	for _, name := range lastingStreams(partitions) {
		s, err := writeStream(ctx, engine, filepath.Join(dir, name), name, progress)
		if name == jetstream.WorkspaceStream && errors.Is(err, broker.ErrNoTopology) {
			continue // an engine may keep no workspaces
		}
		if err != nil {
			return m, fmt.Errorf("back up stream %s: %w", name, err)
		}
		m.Streams = append(m.Streams, s)
	}
	if err := integrity.WriteFile(filepath.Join(dir, manifestFile), m); err != nil {
		return m, err
	}
	return m, syncPath(dir)
}

// lastingStreams returns the names of the streams in a backup of a ledger of n partitions.
func lastingStreams(n int) []string {
	return append(jetstream.LedgerStreams(n), jetstream.LastingStreams[1:]...)
}

// partitionsOf reads the number of partitions of the ledger.
func partitionsOf(engine *jsm.Manager) (int, error) {
	ledger, err := engine.LoadStream(jetstream.LedgerStream)
	if jsm.IsNatsError(err, uint16(nats.JSErrCodeStreamNotFound)) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", jetstream.LedgerStream, err)
	}
	return jetstream.PartitionsIn(ledger.Metadata()), nil
}

func createEmptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err == nil && len(there) > 0 {
		err = protocol.Errorf(protocol.CodeConflict, "dir", "%s is not empty; a backup needs a directory of its own", dir)
	}
	return err
}

func writeStream(ctx context.Context, engine *jsm.Manager, dir, name string, progress Progress) (Stream, error) {
	s := Stream{Name: name}
	from, err := engine.LoadStream(name)
	if jsm.IsNatsError(err, uint16(nats.JSErrCodeStreamNotFound)) {
		return s, fmt.Errorf("%w: no such stream: run handoff topology ensure", broker.ErrNoTopology)
	}
	if err != nil {
		return s, err
	}
	info, err := from.Information()
	if err != nil {
		return s, err
	}
	s.Created = info.Created.UTC()
	complete := false
	for range snapshotTries {
		if complete, err = s.snapshot(ctx, from, dir, progress); err != nil {
			return s, err
		}
		if complete {
			break
		}
		if err := os.RemoveAll(dir); err != nil {
			return s, err
		}
	}
	if !complete {
		return s, fmt.Errorf("messages were replaced during each of %d snapshots; try again when less goes on", snapshotTries)
	}
	files, err := os.ReadDir(dir)
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		sum, n, err := fileDigest(path)
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

// snapshotTries is how often a snapshot is taken until it is complete. A body that is stored again
// replaces its message: the old one may be deleted before the snapshot reaches it, and the new one
// come too late for the snapshot.
const snapshotTries = 20

// snapshot takes a snapshot, and reports whether it has all messages of its start.
func (s *Stream) snapshot(ctx context.Context, from *jsm.Stream, dir string, progress Progress) (complete bool, err error) {
	_, err = from.SnapshotToDirectory(ctx, dir, jsm.SnapshotHealthCheck(), jsm.SnapshotNotify(func(p jsm.SnapshotProgress) {
		progress(s.Name, p.UncompressedBytesReceived(), p.BytesExpected())
	}))
	if err != nil {
		return false, err
	}
	meta, err := snapshotMeta(dir)
	if err != nil {
		return false, err
	}
	s.Messages, s.LastSeq = meta.State.Msgs, meta.State.LastSeq
	if _, err := os.Stat(filepath.Join(dir, jsm.SnapshotDataFile)); err != nil {
		return true, nil // a server before 2.15, whose archives cannot be verified here
	}
	report, err := archive.Verify(dir)
	if err != nil {
		return false, err
	}
	return report.Messages == s.Messages, nil
}

// snapshotInfo describes the stream of a snapshot.
type snapshotInfo struct {
	Config api.StreamConfig `json:"config"`
	State  api.StreamState  `json:"state"`
}

func snapshotMeta(dir string) (meta snapshotInfo, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
	if err == nil {
		err = json.Unmarshal(raw, &meta)
	}
	return meta, err
}

func fileDigest(path string) (sum string, n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// syncPath makes a file, or the names in a directory, durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// check verifies that a backup is complete and unchanged.
func check(dir string) (Manifest, error) {
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
	partitions := 1
	if meta, err := snapshotMeta(filepath.Join(dir, jetstream.LedgerStream)); err == nil { // else its digest is wrong
		partitions = jetstream.PartitionsIn(meta.Config.Metadata)
	}
	names := lastingStreams(partitions)
	for i, name := range names {
		if name == jetstream.WorkspaceStream && len(m.Streams) == i {
			continue
		}
		if i >= len(m.Streams) || len(m.Streams) > len(names) || m.Streams[i].Name != name {
			return m, protocol.Errorf(protocol.CodeMalformed, "dir", "the backup does not name the streams %v", names)
		}
		for _, f := range m.Streams[i].Files {
			if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name {
				return m, protocol.Errorf(protocol.CodeMalformed, "dir", "the backup names a file %q outside of it", f.Name)
			}
			path := filepath.Join(dir, name, f.Name)
			sum, _, err := fileDigest(path)
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
