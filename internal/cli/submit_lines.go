package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bulk"
	"github.com/agenthandoff/handoff/protocol"
)

// linesFlags are those of a submission of many packages, one a line.
type linesFlags struct {
	lines, keepGoing bool
}

// of tells whether a file has a package on each line.
func (f *linesFlags) of(path string) bool {
	ext := filepath.Ext(path)
	return f.lines || ext == ".jsonl" || ext == ".ndjson"
}

// notLines are the flags that are about one handoff.
var notLines = []string{"key", "wait", "under", "child", "group", "deadline"}

func (f *linesFlags) check(changed func(string) bool, flags packageFlags) error {
	if !f.of(flags.file) {
		if f.keepGoing {
			return usagef("--keep-going is for a file of lines; see handoff submit --help")
		}
		return nil
	}
	if flags.file == "" {
		return usagef("--lines needs -f FILE, or -f - for stdin")
	}
	for _, name := range notLines {
		if changed(name) {
			return usagef("--%s is about one handoff, and does not go with a file of lines; a line may say it itself", name)
		}
	}
	for _, path := range []string{flags.contextFile, flags.transfer.historyFile, flags.schemaFile} {
		if path == "-" {
			return usagef("with a file of lines nothing else is read from stdin: it would be there for the first line alone")
		}
	}
	return nil
}

// submitLines submits every line of a file as a package of its own.
func (a *app) submitLines(ctx context.Context, o *submitOptions) error {
	offline, err := a.offline()
	if err != nil {
		return err
	}
	out := &lineWriter{app: a}
	job := bulk.Job{
		Complete: func(pkg protocol.Package) (protocol.Package, error) {
			return o.complete(ctx, pkg, a, time.Now())
		},
		Prepare: offline.Prepare,
		Done:    out.done,
		Progress: func(submitted, refused int, took time.Duration) {
			a.notef("handoff: %d submitted, %d refused after %v\n", submitted, refused, took.Round(time.Second))
		},
	}
	checked := !o.lines.keepGoing || o.dryRun
	input, done, err := a.openLines(ctx, o.file, checked)
	if err != nil {
		return err
	}
	defer done()
	if checked {
		n, err := job.Check(ctx, input)
		switch {
		case err != nil && !is[*bulk.Error](err):
			return err
		case err != nil:
			return errors.Join(out.end(), err)
		case o.dryRun:
			a.notef("handoff: %d packages are in order; nothing was written\n", n)
			return nil
		}
		if _, err := input.(io.Seeker).Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	b, disconnect, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	job.Parent = b.Parent
	job.Submit = func(ctx context.Context, prepared broker.Prepared) error {
		_, err := a.submitOnce(ctx, b, prepared)
		return err
	}
	submitted, err := job.Run(ctx, input)
	err = errors.Join(out.end(), err)
	if o.changed("from") && submitted > 0 {
		a.warnSource(ctx, b, o.from)
	}
	return err
}

// openLines opens a file of lines. Input that is read twice and is no file goes into one first.
func (a *app) openLines(ctx context.Context, name string, twice bool) (io.Reader, func(), error) {
	from, done := a.in, func() {}
	if name != "-" {
		file, err := a.open(name)
		if err != nil {
			return nil, nil, err
		}
		from, done = file, func() { _ = file.Close() }
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			return file, done, nil
		}
	}
	if !twice {
		return from, done, nil
	}
	defer done()
	spool, err := os.CreateTemp("", "handoff-lines-")
	if err != nil {
		return nil, nil, err
	}
	drop := func() { _ = spool.Close(); _ = os.Remove(spool.Name()) }
	if _, err = io.Copy(spool, from); err == nil && ctx.Err() == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		drop()
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return spool, drop, nil
}
