package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// lineBytesMax is the longest line that is read: the largest package or result, whose escapes at
// most double it, and the rest of its line.
const lineBytesMax = 2*protocol.PackageBytesMax + 1<<10

// errTruncated is returned for a last line without a newline.
var errTruncated = errors.New("the last line has no end")

// lineReader reads lines and their offsets.
type lineReader struct {
	scanner *bufio.Scanner
	offset  int64 // of the next line
	n       int   // number of the last line, from 1
}

func newLineReader(r io.Reader) *lineReader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<20), lineBytesMax)
	s.Split(func(data []byte, atEOF bool) (advance int, line []byte, err error) {
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			return end + 1, data[:end], nil
		}
		if atEOF && len(data) > 0 {
			return 0, nil, errTruncated
		}
		return 0, nil, nil
	})
	return &lineReader{scanner: s}
}

// next returns a line without its newline, and its offset. The line is valid until the next call.
// The error is io.EOF at the end of the file, errTruncated if the last line has no newline, or
// bufio.ErrTooLong if the line is longer than lineBytesMax.
func (l *lineReader) next() (line []byte, at int64, err error) {
	more := l.scanner.Scan()
	if err := l.scanner.Err(); !more && err == nil {
		return nil, l.offset, io.EOF
	}
	l.n++
	line, at = l.scanner.Bytes(), l.offset
	l.offset += int64(len(line)) + 1
	return line, at, l.scanner.Err()
}

// filesOf are the files of an export or of a directory of exports, in order.
func filesOf(path string) (files []string, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	files, err = filepath.Glob(filepath.Join(path, filePattern))
	slices.Sort(files) // by their first sequence
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s has no exports (%s)", path, filePattern)
	}
	for _, file := range files {
		err = cmp.Or(err, checkRegular(file))
	}
	return files, true, err
}

// checkRegular refuses anything but a regular file: a directory may come from elsewhere, and a
// named pipe would block its reader.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	return err
}
