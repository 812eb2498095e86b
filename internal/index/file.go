package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	// schemaVersion is raised with every change of the file's content or its meaning.
	schemaVersion = 13
	// applicationID marks the file as ours: "HndI".
	applicationID = 0x486e6449
)

// The results of fileVersion.
const (
	fileNone = iota
	fileCurrent
	fileOlder
	fileBroken
)

// headerBytes is the length of a SQLite header, which names the application.
const headerBytes = 100

// fileVersion reads the header of the file without opening it as a database, which might write to
// it. A file of a newer version or of another program is an error.
func fileVersion(path string) (int, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileNone, nil
	}
	if err != nil {
		return fileNone, fmt.Errorf("open the index: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return fileNone, fmt.Errorf("open the index: %s is no file", path)
	}
	header := make([]byte, headerBytes)
	switch _, err := io.ReadFull(f, header); {
	case errors.Is(err, io.EOF): // an empty file
		return fileOlder, nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fileBroken, nil
	case err != nil:
		return fileNone, fmt.Errorf("open the index: %w", err)
	}
	version, application := binary.BigEndian.Uint32(header[60:]), binary.BigEndian.Uint32(header[68:])
	switch {
	case !bytes.HasPrefix(header, []byte("SQLite format 3\x00")):
		return fileBroken, nil
	case application != applicationID:
		return fileNone, fmt.Errorf("%w: %s is a database of another program, and stays as it is; name another file", errForeign, path)
	case version > schemaVersion:
		return fileNone, fmt.Errorf("%w: %s has version %d, this program knows %d; use the newer handoff, name another file, or remove this one (it is made again from the ledger)",
			errNewer, path, version, schemaVersion)
	case version < schemaVersion:
		return fileOlder, nil
	}
	return fileCurrent, nil
}

// fileSuffixes are the suffixes of the files that make up a SQLite database.
var fileSuffixes = []string{"", "-wal", "-shm"}

func removeFiles(path string) error {
	for _, suffix := range fileSuffixes {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// damageError is an error that makes the file unusable.
type damageError struct{ err error }

func (d *damageError) Error() string { return d.err.Error() }
func (d *damageError) Unwrap() error { return d.err }

func damagef(format string, args ...any) error { return &damageError{fmt.Errorf(format, args...)} }

// checkFiles makes sure that no other program has deleted, replaced or shortened the files. SQLite
// alone would continue to read the files that it has open. Only the writer extends them, and records
// their sizes.
func (st *store) checkFiles(record bool) error {
	st.files.Lock()
	defer st.files.Unlock()
	for i, suffix := range fileSuffixes {
		id, err := os.Stat(st.path + suffix)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return damagef("%s%s was deleted", st.path, suffix)
		case err != nil:
			return damagef("%w", err)
		case st.ids[i] != nil && !os.SameFile(id, st.ids[i]):
			return damagef("%s%s was replaced", st.path, suffix)
		case id.Size() < st.sizes[i]:
			return damagef("%s%s was cut from %d bytes to %d", st.path, suffix, st.sizes[i], id.Size())
		case record:
			st.ids[i], st.sizes[i] = id, id.Size()
		}
	}
	return nil
}

// logSize returns the recorded size of the log.
func (st *store) logSize() int64 {
	st.files.Lock()
	defer st.files.Unlock()
	return st.sizes[1]
}
