package integrity

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"crypto/sha256"
)

// Witness is the position of a ledger that a process has recorded. It is written rarely and after a
// clean stop, to a file outside the ledger's data: only such a file reveals that all data is an
// older copy.
type Witness struct {
	Created time.Time `json:"ledger"` // which ledger
	First   uint64    `json:"first"`
	FirstAt time.Time `json:"first_at,omitzero"`
	Last    uint64    `json:"last"`
	LastAt  time.Time `json:"last_at,omitzero"`
	LastSum string    `json:"last_sum,omitempty"` // of the last entry as stored; empty is unknown
}

// Seen converts the witness to a fact.
func (w Witness) Seen(by string) Seen {
	return Seen{By: by, Created: w.Created, First: w.First, FirstAt: w.FirstAt, Last: w.Last, LastAt: w.LastAt}
}

// WitnessFile returns the file of the witness of a partition of a ledger in a directory of witnesses.
func WitnessFile(dir string, created time.Time, partition int) string {
	sum := sha256.Sum256([]byte(created.UTC().Format(time.RFC3339Nano)))
	name := "ledger-" + hex.EncodeToString(sum[:8])
	if partition > 0 {
		name += fmt.Sprintf("-%d", partition)
	}
	return filepath.Join(dir, name+".json")
}

// ReadFile reads JSON from a file. If the file is missing or cannot be parsed, found is false
// without an error: a damaged witness counts as none.
func ReadFile(path string, into any) (found bool, err error) {
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return json.Unmarshal(body, into) == nil, nil
}

// WriteFile replaces a file with JSON, durably.
func WriteFile(path string, value any) (err error) {
	body, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
