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
)

// LineBytesMax is the longest line that is read: well over the JSON of an append of the largest
// size.
const LineBytesMax = 64 << 20

// readerBytes is the buffer that lines are read through.
const readerBytes = 1 << 20

// lineReader reads lines and their offsets.
type lineReader struct {
	r      *bufio.Reader
	offset int64 // of the next line
	n      int   // number of the last line, from 1
}

var (
	errTruncated = errors.New("the last line has no end")
	errTooLong   = fmt.Errorf("a line is longer than %d bytes", LineBytesMax)
)

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, readerBytes)}
}

// next returns a line without its newline, and its offset. The line is valid until the next call.
// At the end of the file it returns io.EOF, or errTruncated with the rest of a line that has no
// newline.
func (l *lineReader) next() (line []byte, at int64, err error) {
	at = l.offset
	line, err = l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			var more []byte
			more, err = l.r.ReadSlice('\n')
			if line = append(line, more...); len(line) > LineBytesMax {
				return nil, at, errTooLong
			}
		}
	}
	l.offset += int64(len(line))
	switch {
	case err == nil:
		l.n++
		return line[:len(line)-1], at, nil
	case errors.Is(err, io.EOF) && len(line) > 0:
		l.n++
		return line, at, errTruncated
	}
	return nil, at, err
}

// filesOf are the files of an export or of an archive's directory, in order.
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
		err = fmt.Errorf("%s has no files of an archive (%s)", path, filePattern)
	}
	for _, file := range files {
		err = cmp.Or(err, checkRegular(file))
	}
	return files, true, err
}

// checkRegular refuses anything but a regular file: an archive may come from elsewhere, and a
// named pipe would block its reader.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	return err
}
