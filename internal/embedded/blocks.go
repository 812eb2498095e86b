package embedded

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/minio/highwayhash"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// A block is a file of messages of a stream, as nats-server 2.15 writes it. Each message is a
// record: its length, sequence, time and subject, its headers and body, and a checksum whose key
// consists of the names of the stream and of the block. The server truncates a block at the first
// unreadable record; so the blocks are read before it starts. TestBlocksOfTheServer fails if the
// format changes.
const (
	recordHeaderBytes = 22
	recordSumBytes    = 8
	recordBytesMax    = 32 << 20
	headersBit        = 1 << 31
	erasedBit         = 1 << 63
	tombstoneBit      = 1 << 62
)

// Block describes a block of the ledger's files.
type Block struct {
	Number     uint32         `json:"n"`
	Bytes      int64          `json:"bytes"`
	ModifiedNS int64          `json:"modified_ns"`
	First      uint64         `json:"first"` // 0 is none
	Last       uint64         `json:"last"`
	FirstAt    time.Time      `json:"first_at,omitzero"`
	LastAt     time.Time      `json:"last_at,omitzero"`
	LastSum    string         `json:"last_sum,omitempty"` // checksum of the last record
	Missing    []broker.Range `json:"missing,omitempty"`  // between First and Last
	Dropped    uint64         `json:"dropped,omitempty"`  // the last entry that it marks as dropped
	unreadable bool           // it has bytes that are not a record
	headless   bool           // so are its first bytes
	tickets    []string       // of unreadable records, if known
}

// LedgerFiles describes the files of a node's ledger.
type LedgerFiles struct {
	// Created is zero if there is no ledger.
	Created, Began time.Time
	Accepted       []broker.Range
	// Broken is why there is no ledger, or why it cannot be opened.
	Broken string
	// Headless is why the server cannot open a partition of which no entry is lost: the record before its
	// first entry is unreadable, and it would look for all that might be before.
	Headless    string
	First, Last uint64
	FirstAt     time.Time
	LastAt      time.Time
	LastSum     string
	Missing     []broker.Range // between First and Last
	Blocks      []Block
	Meta        Meta
	// Tickets are those of unreadable entries, if known.
	Tickets []string
	// Read counts the bytes read from the files.
	Read int64
	// Sums has the checksums of the requested entries whose blocks were read.
	Sums map[uint64]string
	// Partition is the partition of the ledger that the files are of, and Partitions, from the settings
	// of the first one, how many there are; 0 is unknown.
	Partition, Partitions int
}

// Meta are the two files of the settings of a stream.
type Meta struct {
	Settings string `json:"settings"`
	Sum      string `json:"sum"`
}

// streamDir returns the directory of a stream of a node in dir.
func streamDir(dir, stream string) string {
	return filepath.Join(dir, storeDir, "jetstream", "$G", "streams", stream)
}

// LedgersIn returns the number of partitions whose files a node in dir has: that of the last one.
func LedgersIn(dir string) (n int) {
	for p := range broker.PartitionsMax {
		stream, _ := jetstream.LedgerPartition(p)
		if _, err := os.Stat(streamDir(dir, stream)); err == nil {
			n = p + 1
		}
	}
	return n
}

// ReadLedgerFiles reads the files of a partition of a node's ledger. It does not reread blocks that are unchanged since
// known, except the last one. wanted returns the entries of a ledger whose checksums are requested;
// nil is none. The files may grow meanwhile.
func ReadLedgerFiles(dir string, partition int, known []Block, wanted func(created time.Time) []uint64) (LedgerFiles, error) {
	f := LedgerFiles{Sums: map[uint64]string{}, Partition: partition}
	stream, _ := jetstream.LedgerPartition(partition)
	at := streamDir(dir, stream)
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		return f, nil
	} else if err != nil {
		return f, err
	}
	if err := f.readMeta(at); err != nil {
		f.Broken = fmt.Sprintf("the file of its settings (%s) cannot be read: %v", filepath.Join(at, "meta.inf"), err)
	}
	numbers, err := blockNumbers(filepath.Join(at, "msgs"))
	if err != nil {
		return f, err
	}
	var sums []uint64
	if wanted != nil {
		sums = wanted(f.Created)
	}
	for i, n := range numbers {
		path := filepath.Join(at, "msgs", fmt.Sprintf("%d.blk", n))
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) { // meanwhile dropped because of its age
			continue
		}
		if err != nil {
			return f, err
		}
		b := Block{Number: n, Bytes: info.Size(), ModifiedNS: info.ModTime().UnixNano()}
		j := slices.IndexFunc(known, func(k Block) bool { return k.Number == n && k.Bytes == b.Bytes && k.ModifiedNS == b.ModifiedNS })
		asked := slices.ContainsFunc(sums, func(s uint64) bool { return j >= 0 && s >= known[j].First && s <= known[j].Last })
		if j >= 0 && i < len(numbers)-1 && !asked {
			b = known[j]
		} else {
			buf, err := os.ReadFile(path)
			if err != nil {
				return f, err
			}
			f.Read += int64(len(buf))
			if err := b.read(buf, partition, sums, f.Sums); err != nil {
				return f, err
			}
			if i == 0 && partition > 0 && b.headless && b.First == broker.PartitionBase(partition)+1 {
				f.Headless = fmt.Sprintf("the beginning of its first block (%s) cannot be read", path)
			}
		}
		f.add(b)
	}
	return f, nil
}

// add appends a block to those before it.
func (f *LedgerFiles) add(b Block) {
	f.Blocks = append(f.Blocks, b)
	f.Tickets = append(f.Tickets, b.tickets...)
	defer func() { f.Last = max(f.Last, b.Dropped) }()
	if b.First == 0 || b.Last <= f.Last {
		return
	}
	switch {
	case f.First == 0:
		f.First, f.FirstAt = b.First, b.FirstAt
	case b.First > f.Last+1:
		f.Missing = append(f.Missing, broker.Range{From: f.Last + 1, To: b.First - 1})
	}
	f.Missing = append(f.Missing, b.Missing...)
	f.Last, f.LastAt, f.LastSum = b.Last, b.LastAt, b.LastSum
}

// readMeta reads the settings of the ledger, which name it.
func (f *LedgerFiles) readMeta(at string) error {
	body, err := os.ReadFile(filepath.Join(at, "meta.inf"))
	if err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(at, "meta.sum"))
	if err != nil {
		return err
	}
	stream, _ := jetstream.LedgerPartition(f.Partition)
	key := sha256.Sum256([]byte(stream))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return err
	}
	h.Write(body)
	if have := hex.EncodeToString(h.Sum(nil)); have != string(sum) {
		return errors.New("its checksum is wrong")
	}
	var meta struct {
		Created  time.Time
		Metadata map[string]string `json:"metadata"`
	}
	if err := json.Unmarshal(body, &meta); err != nil {
		return err
	}
	f.Meta = Meta{Settings: string(body), Sum: string(sum)}
	f.Created, f.Began, f.Accepted = jetstream.LedgerIdentity(meta.Created, meta.Metadata)
	f.Partitions = jetstream.PartitionsIn(meta.Metadata)
	return nil
}

// blockNumbers returns the numbers of the blocks in a directory, sorted.
func blockNumbers(dir string) (all []uint32, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, file := range files {
		var n uint32
		if _, err := fmt.Sscanf(file.Name(), "%d.blk", &n); err == nil && file.Name() == fmt.Sprintf("%d.blk", n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}

// eachRecord calls fn with each record of a block and its offset. ok is false for bytes that are
// none.
func (b *Block) eachRecord(buf []byte, partition int, fn func(at int, r storedRecord, ok bool)) error {
	stream, prefix := jetstream.LedgerPartition(partition)
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, b.Number))
	h, err := highwayhash.NewDigest64(key[:])
	if err != nil {
		return err
	}
	for at := 0; at < len(buf); {
		r, ok := readRecord(buf[at:], prefix, h)
		fn(at, r, ok)
		if ok {
			at += r.bytes
		} else {
			at = nextRecord(buf, at+1, prefix, h)
		}
	}
	return nil
}

// read reads the records of a block.
func (b *Block) read(buf []byte, partition int, wanted []uint64, sums map[uint64]string) error {
	return b.eachRecord(buf, partition, func(at int, r storedRecord, ok bool) {
		if !ok {
			b.unreadable, b.headless = true, b.headless || at == 0
			if r.ticket != "" {
				b.tickets = append(b.tickets, r.ticket)
			}
			return
		}
		if r.seq&(tombstoneBit|erasedBit) != 0 { // of an entry that was dropped because of its age
			b.Dropped = max(b.Dropped, r.seq&^(tombstoneBit|erasedBit))
			return
		}
		if r.seq <= b.Last && b.First > 0 {
			return
		}
		if slices.Contains(wanted, r.seq) {
			sums[r.seq] = r.sum
		}
		switch {
		case b.First == 0:
			b.First, b.FirstAt = r.seq, r.at
		case r.seq > b.Last+1:
			b.Missing = append(b.Missing, broker.Range{From: b.Last + 1, To: r.seq - 1})
		}
		b.Last, b.LastAt, b.LastSum = r.seq, r.at, r.sum
	})
}

// storedRecord is one message in a block.
type storedRecord struct {
	bytes  int
	seq    uint64
	at     time.Time
	ticket string
	sum    string
}

// readRecord decodes the record at the start of buf. ok is false if there is none, or if its
// checksum is wrong; the ticket is then the one that the damaged record seems to have.
func readRecord(buf []byte, prefix string, h hash.Hash) (r storedRecord, ok bool) {
	if len(buf) < recordHeaderBytes+recordSumBytes {
		return r, false
	}
	length := binary.LittleEndian.Uint32(buf)
	subject := int(binary.LittleEndian.Uint16(buf[20:]))
	headers := length&headersBit != 0
	r.bytes = int(length &^ headersBit)
	begin := recordHeaderBytes + subject // of the body
	if headers {
		begin += 4
	}
	if r.bytes > recordBytesMax || r.bytes > len(buf) || begin+recordSumBytes > r.bytes {
		return r, false
	}
	h.Reset()
	h.Write(buf[4:20])
	h.Write(buf[recordHeaderBytes : recordHeaderBytes+subject])
	h.Write(buf[begin : r.bytes-recordSumBytes])
	sum := buf[r.bytes-recordSumBytes : r.bytes]
	if ticket, ours := strings.CutPrefix(string(buf[recordHeaderBytes:recordHeaderBytes+subject]), prefix); ours && uuid.Validate(ticket) == nil {
		r.ticket = ticket
	}
	var have [recordSumBytes]byte
	if !bytes.Equal(h.Sum(have[:0]), sum) {
		return r, false
	}
	r.seq, r.at = binary.LittleEndian.Uint64(buf[4:]), time.Unix(0, int64(binary.LittleEndian.Uint64(buf[12:]))).UTC()
	r.sum = hex.EncodeToString(sum)
	return r, true
}

// nextRecord returns the offset of the next record of the ledger, from at on; the length of buf if
// there is none.
func nextRecord(buf []byte, at int, prefix string, h hash.Hash) int {
	for at < len(buf) {
		i := bytes.Index(buf[at:], []byte(prefix))
		if i < 0 {
			return len(buf)
		}
		begin := at + i - recordHeaderBytes
		if begin >= at {
			if _, ok := readRecord(buf[begin:], prefix, h); ok {
				return begin
			}
		}
		at += i + 1
	}
	return len(buf)
}

// Salvage makes a damaged partition of a ledger in dir readable for the server. It moves the damaged files into
// the directory aside, which it creates, and keeps the readable entries in the blocks. meta
// replaces unreadable settings; without it the whole partition is moved aside.
func (f LedgerFiles) Salvage(dir, aside string, meta Meta) error {
	stream, _ := jetstream.LedgerPartition(f.Partition)
	at := streamDir(dir, stream)
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if f.Partition > 0 {
		aside = filepath.Join(aside, stream)
	}
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return err
	}
	if f.Broken != "" && meta.Settings == "" {
		return os.Rename(at, filepath.Join(aside, stream))
	}
	if f.Broken != "" {
		for name, text := range map[string]string{"meta.inf": meta.Settings, "meta.sum": meta.Sum} {
			path := filepath.Join(at, name)
			if err := os.Rename(path, filepath.Join(aside, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if err := writeSynced(path, text); err != nil {
				return err
			}
		}
	}
	for _, b := range f.Blocks {
		if !b.unreadable {
			continue
		}
		if err := b.salvage(filepath.Join(at, "msgs"), aside, f.Partition); err != nil {
			return err
		}
	}
	// The server's index describes the blocks before the change.
	if err := os.Remove(filepath.Join(at, "msgs", "index.db")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// salvage replaces a block by its readable records, and keeps the original in aside.
func (b *Block) salvage(dir, aside string, partition int) error {
	name := fmt.Sprintf("%d.blk", b.Number)
	path := filepath.Join(dir, name)
	buf, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var whole []byte
	if err := b.eachRecord(buf, partition, func(at int, r storedRecord, ok bool) {
		if ok {
			whole = append(whole, buf[at:at+r.bytes]...)
		}
	}); err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(aside, name), string(buf)); err != nil {
		return err
	}
	if len(whole) == 0 {
		return os.Remove(path)
	}
	return writeSynced(path, string(whole))
}
