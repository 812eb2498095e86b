package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/agenthandoff/handoff/protocol"
)

// path resolves a file name from the command line or the environment. Names are
// relative to the directory of the app, which is the process's own for Main.
func (a *app) path(name string) string { return resolvePath(a.dir, name) }

func resolvePath(dir, name string) string {
	if dir == "" || name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func (a *app) readFile(name string) ([]byte, error) {
	body, err := os.ReadFile(a.path(name))
	return body, named(err, name)
}

// named gives the error of a file the name by which the user called it.
func named(err error, name string) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return &fs.PathError{Op: path.Op, Path: name, Err: path.Err}
	}
	return err
}

// home is the user's home directory.
func (a *app) home() (string, error) {
	if a.dir == "" {
		return os.UserHomeDir()
	}
	return cmp.Or(a.env("HOME"), a.dir), nil
}

// baseHome is an XDG base directory, with the name of this program: that of a variable, or one below
// the user's home directory.
func (a *app) baseHome(variable, below string) (string, error) {
	base := a.env(variable)
	if !filepath.IsAbs(base) { // the specification asks to ignore others
		home, err := a.home()
		if err != nil {
			return "", fmt.Errorf("%w; set $%s", err, variable)
		}
		base = filepath.Join(home, below)
	}
	return filepath.Join(base, "handoff"), nil
}

func (a *app) stateHome() (string, error) { return a.baseHome("XDG_STATE_HOME", ".local/state") }

func (a *app) dataHome() (string, error) { return a.baseHome("XDG_DATA_HOME", ".local/share") }

// readAs reads a file of one thing, - being stdin.
func readAs[T any](a *app, path string, decode func([]byte) (T, error)) (v T, err error) {
	body, err := a.read(path)
	if err != nil {
		return v, err
	}
	return decode(body)
}

// read reads a file named on the command line, - being stdin, up to the size
// that any input may have.
func (a *app) read(path string) ([]byte, error) {
	from, name := a.in, "standard input"
	if path != "-" {
		name = path
		file, err := os.Open(a.path(path))
		if err != nil {
			return nil, named(err, path)
		}
		defer file.Close()
		from = file
	}
	body, err := io.ReadAll(io.LimitReader(from, protocol.PackageBytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(body) > protocol.PackageBytesMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, "package", "%s is over %s, which is the most that is read; hand large files over as artifacts", name, protocol.Size(protocol.PackageBytesMax))
	}
	return body, nil
}

// readPart reads a file that holds one part of a package. Its errors read as if the part were in
// the package, with the file's own lines and columns.
func (a *app) readPart(path, before, after string) (protocol.Package, error) {
	body, err := a.read(path)
	if err != nil {
		return protocol.Package{}, err
	}
	if !json.Valid(body) {
		_, err := protocol.DecodePackage(body)
		return protocol.Package{}, inField(err, path, "")
	}
	pkg, err := protocol.DecodePackage(slices.Concat([]byte(before), body, []byte(after)))
	return pkg, amended(err, func(e *protocol.Error) { // before is in the first line, and not in the file
		e.Message = firstLine.ReplaceAllStringFunc(e.Message, func(at string) string {
			column, _ := strconv.Atoi(firstLine.FindStringSubmatch(at)[1])
			return fmt.Sprintf("(line 1, column %d)", column-len(before))
		})
	})
}

// firstLine matches the decoder's position of a field.
var firstLine = regexp.MustCompile(`\(line 1, column ([0-9]+)\)`)

// inField names the input that did not parse: the decoder sees it alone, and may name a field from
// deep within.
func inField(err error, field, more string) error {
	return amended(err, func(e *protocol.Error) { e.Field, e.Message = field, e.Message+more })
}

// amended returns a refusal with a change. Other errors are returned as they are.
func amended(err error, change func(*protocol.Error)) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	own := *e
	if change(&own); own == *e {
		return err
	}
	return &own
}
