package cli

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// open opens a file named by the user. Its errors keep the user's name for it.
func (a *app) open(name string) (*os.File, error) {
	file, err := os.Open(a.path(name))
	return file, named(err, name)
}

func (a *app) readFile(name string) ([]byte, error) {
	body, err := os.ReadFile(a.path(name))
	return body, named(err, name)
}

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
