package cli

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// addArtifacts adds name=path pairs in the form that is already there.
func addArtifacts(to *protocol.Artifacts, pairs []string) error {
	for _, pair := range pairs {
		name, path, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return usagef("--artifact %q: write name=path", pair)
		}
		if to.ByName != nil {
			to.ByName[name] = &path
			continue
		}
		to.List = append(to.List, protocol.Artifact{Name: name, Path: path})
	}
	return nil
}

// isURI matches what names something elsewhere; a drive of Windows has one letter.
var isURI = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`)

// warnArtifacts says which files of name=path pairs are not there. They may be at the target.
func (a *app) warnArtifacts(pairs []string) {
	for _, pair := range pairs {
		name, path, _ := strings.Cut(pair, "=")
		if path == "" || isURI.MatchString(path) {
			continue
		}
		if _, err := os.Stat(a.path(path)); errors.Is(err, fs.ErrNotExist) {
			a.notef("handoff: --artifact %s: there is no file %s here; the path is handed off as it is\n", name, path)
		}
	}
}
