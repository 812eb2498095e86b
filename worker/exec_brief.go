package worker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/protocol"
)

// since is what has happened to a handoff since it was submitted, with the variables of its workflow
// as they stand now. It waits for an engine that does not answer.
func (h Handoff) since(ctx context.Context) (brief.Since, error) {
	since := brief.Since{Answers: h.Answers, Trail: h.Trail, Returns: h.Returns}
	if h.r == nil || h.r.state().Workspace == "" {
		return since, nil
	}
	err := h.r.w.retry(ctx, "read the workspace", func(ctx context.Context) error {
		w, err := h.Workspace(ctx)
		if err == nil {
			since.Shared = brief.SharedOf(w)
		}
		return err
	})
	var refused *protocol.Error
	if errors.As(err, &refused) { // there is none to read
		return since, nil
	}
	return since, err
}

// brief leaves the brief of a handoff in a file, and returns what the program reads and its
// environment. Where it reads the brief, the package is in a file too.
func (e *Exec) brief(h Handoff, since brief.Since, dir string, input []byte, env []string) ([]byte, []string, error) {
	text := []byte(brief.Markdown(&h.Package, h.State(), since))
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
