package worker

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// CheckCommand reports whether a command can be run in dir (empty: here), before any
// handoff is charged for it: its program must be there, and executable, and
// the interpreter that its first line names as well. The *protocol.Error names
// the fault.
func CheckCommand(dir string, command []string) error {
	const field = "command"
	if len(command) == 0 || command[0] == "" {
		return protocol.Errorf(protocol.CodeMissing, field, "is missing: the program that does the work")
	}
	if dir != "" && !isDirectory(dir) {
		return protocol.Errorf(protocol.CodeInvalid, "dir", "%q is not a directory", dir)
	}
	name := command[0]
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
		if !strings.ContainsRune(name, filepath.Separator) { // Join has cleaned ./x to x
			name = "." + string(filepath.Separator) + name
		}
	}
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case errors.Is(err, exec.ErrDot):
		return protocol.Errorf(protocol.CodeInvalid, field, "%q is in the current directory: write ./%s", command[0], command[0])
	case errors.Is(err, os.ErrPermission):
		return protocol.Errorf(protocol.CodeInvalid, field, "%q is not executable: chmod +x %s", command[0], command[0])
	case isDirectory(name):
		return protocol.Errorf(protocol.CodeInvalid, field, "%q is a directory, not a program", command[0])
	default:
		return protocol.Errorf(protocol.CodeInvalid, field, "%q was not found", command[0])
	}
	if runtime.GOOS == "windows" { // extensions decide there, not first lines
		return nil
	}
	return checkFirstLine(command[0], path)
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// checkFirstLine refuses a file that the kernel could not start: a text without #!,
// and a script whose interpreter is not there.
func checkFirstLine(name, path string) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil // to open a named pipe would wait for a writer
	}
	file, err := os.Open(path)
	if err != nil {
		return nil // executable and not readable: only a start shows
	}
	defer file.Close()
	head := make([]byte, 256)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil
	}
	head = head[:n]
	line, isScript := bytes.CutPrefix(head, []byte("#!"))
	if !isScript {
		if text := head[:max(0, n-utf8.UTFMax)]; n == 0 || !bytes.ContainsRune(head, 0) && utf8.Valid(text) {
			return protocol.Errorf(protocol.CodeInvalid, "command", "%q is a text without an interpreter: let it begin with a line #!/bin/sh", name)
		}
		return nil
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	if bytes.HasSuffix(line, []byte("\r")) { // to the kernel it is a part of the interpreter's name
		return protocol.Errorf(protocol.CodeInvalid, "command", "the first line of %q ends in a carriage return (CR), as lines of Windows do: end its lines in LF alone", name)
	}
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return nil // the kernel takes it for sh's
	}
	if info, err := os.Stat(words[0]); err != nil || info.IsDir() {
		return protocol.Errorf(protocol.CodeInvalid, "command", "%q wants the interpreter %q, which is not there", name, words[0])
	}
	return nil
}
