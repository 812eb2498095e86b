package worker

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/agenthandoff/handoff/brief"
)

// brief leaves the brief of a handoff in a file, and returns what the program reads and its
// environment. Where it reads the brief, the package is in a file too.
func (e *Exec) brief(h Handoff, dir string, input []byte, env []string) ([]byte, []string, error) {
	text := []byte(brief.Markdown(&h.Package, h.State(), brief.Since{Answers: h.Answers, Trail: h.Trail, Returns: h.Returns}))
	briefFile, packageFile := filepath.Join(dir, "brief.md"), ""
	if err := os.WriteFile(briefFile, text, 0o600); err != nil {
		return nil, nil, err
	}
	if e.cfg.Input == InputBrief {
		packageFile = filepath.Join(dir, "package.json")
		if err := os.WriteFile(packageFile, input, 0o600); err != nil {
			return nil, nil, err
		}
		input = text
	}
	return input, append(env, "HANDOFF_BRIEF_FILE="+briefFile, "HANDOFF_PACKAGE_FILE="+packageFile,
		"HANDOFF_MAX_ITERATIONS="+strconv.Itoa(brief.Iterations(&h.Package))), nil
}
