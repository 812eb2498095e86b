package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// linesAtOnce is how many lines are submitted side by side: enough for an
	// engine that syncs every write to sync many of them at once.
	linesAtOnce = 128
	// linesBytesAtOnce bounds how much of the file is in memory.
	linesBytesAtOnce = 2 * protocol.PackageBytesMax
	// lineErrorsMax is how many wrong lines are told of before anything is
	// written. Whoever mixed up two files learns it from a few.
	lineErrorsMax = 20
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
	for _, path := range []string{flags.contextFile, flags.historyFile, flags.schemaFile} {
		if path == "-" {
			return usagef("with a file of lines nothing else is read from stdin: it would be there for the first line alone")
		}
	}
	return nil
}

// lineError is what is wrong with one line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// linesError is how a submission of many ended that did not go well: the worst
// or else the first of its errors says how the command ends.
type linesError struct {
	message string
	err     error
}

func (e *linesError) Error() string { return e.message }
func (e *linesError) Unwrap() error { return e.err }

// lineView is one line for programs: it has a ticket or an error.
type lineView struct {
	Line   int             `json:"line"`
	Ticket string          `json:"ticket,omitempty"`
	Error  *protocol.Error `json:"error,omitempty"`
}

// bulk submits the packages of a file.
type bulk struct {
	*app
	flags   packageFlags
	changed func(string) bool
	offline *broker.Broker // checks without an engine
	out     lineWriter
	parents lastParent

	submitted, refused int
	first              error // the first line that was refused
}

// submitLines submits every line of a file as a package of its own.
func (a *app) submitLines(ctx context.Context, flags packageFlags, lines linesFlags, changed func(string) bool, dryRun bool) error {
	redactor, err := a.redactor()
	if err != nil {
		return err
	}
	s := &bulk{app: a, flags: flags, changed: changed, out: lineWriter{app: a}}
	if s.offline, err = broker.New(nil, broker.Config{Redactor: redactor}); err != nil {
		return err
	}
	input, done, err := s.open(ctx, !lines.keepGoing || dryRun)
	if err != nil {
		return err
	}
	defer done()
	if !lines.keepGoing || dryRun {
		n, err := s.checkAll(ctx, input)
		if err != nil || dryRun {
			if err == nil {
				a.notef("handoff: %d packages are in order; nothing was written\n", n)
			}
			return err
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
	err = s.run(ctx, b, input)
	if changed("from") && s.submitted > 0 {
		a.warnSource(ctx, b, flags.from)
	}
	return err
}

// open opens the file. What is read twice and is no file goes into one first.
func (s *bulk) open(ctx context.Context, twice bool) (io.Reader, func(), error) {
	from, done := s.in, func() {}
	if s.flags.file != "-" {
		file, err := os.Open(s.flags.file)
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
		return nil, nil, fmt.Errorf("read %s: %w", s.flags.file, err)
	}
	return spool, drop, nil
}

// eachLine calls do with each line that is not blank, and its number from 1. The
// line is do's to keep.
func eachLine(from io.Reader, do func(n int, line []byte) error) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if errors.Is(err, errLineTooLong) {
			return &lineError{n, protocol.Errorf(protocol.CodeTooLarge, "package", "is over %d bytes; hand large files over as artifacts", protocol.PackageBytesMax)}
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("read line %d: %w", n, err)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if err := do(n, line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

var errLineTooLong = errors.New("the line is too long")

// readLine reads one line of at most the size of a package.
func readLine(from *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		line = append(line, part...)
		if len(bytes.TrimRight(line, "\r\n")) > protocol.PackageBytesMax {
			return nil, errLineTooLong
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// read makes the package of a line.
func (s *bulk) read(line []byte) (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(line)
	if err != nil {
		return pkg, err
	}
	return s.flags.complete(pkg, s.changed, s.app, time.Now())
}

// prepare checks the package of a line as far as that goes without an engine.
func (s *bulk) prepare(ctx context.Context, line []byte) (broker.Prepared, error) {
	pkg, err := s.read(line)
	if err != nil {
		return broker.Prepared{}, err
	}
	return s.offline.Prepare(ctx, pkg)
}

// lastParent keeps the parent that was read last: as a rule all lines have the same.
type lastParent struct {
	mu     sync.Mutex
	ticket string
	parent *protocol.Parent
}

func (l *lastParent) of(ctx context.Context, b *broker.Broker, ticket string) (*protocol.Parent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ticket == ticket {
		return l.parent, nil
	}
	parent, err := b.Parent(ctx, ticket)
	if err == nil {
		l.ticket, l.parent = ticket, parent
	}
	return parent, err
}

// checkAll checks every line as far as that goes without an engine, and tells
// what is wrong with each.
func (s *bulk) checkAll(ctx context.Context, input io.Reader) (n int, err error) {
	var wrong []error
	err = eachLine(input, func(line int, text []byte) error {
		n++
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := s.prepare(ctx, text)
		if is[*protocol.Error](err) {
			if wrong = append(wrong, &lineError{line, err}); len(wrong) <= lineErrorsMax {
				return s.complain(line, err)
			}
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return n, err
	case len(wrong) > 0:
		if err := s.out.end(); err != nil {
			return n, err
		}
		return n, &linesError{fmt.Sprintf("%d of %d packages are not in order; nothing was written (--keep-going submits the others)", len(wrong), n), wrong[0]}
	}
	return n, nil
}

// complain tells what is wrong with one line: people on stderr, programs in the
// output.
func (s *bulk) complain(line int, err error) error {
	if s.text() {
		s.notef("handoff: %s\n", &lineError{line, err})
		return nil
	}
	var e *protocol.Error
	errors.As(err, &e)
	return s.out.write(lineView{Line: line, Error: e})
}

// sent is a line that was submitted, or will not be.
type sent struct {
	view lineView
	err  error
}

// run submits the lines, many at a time, and prints what became of them in the
// order in which they stand. Who has been reached and does not answer ends it.
func (s *bulk) run(ctx context.Context, b *broker.Broker, input io.Reader) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	order := make(chan chan sent, linesAtOnce)
	var readErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(order)
		readErr = s.feed(ctx, b, input, order, &wg)
	})
	began, tick := time.Now(), time.NewTicker(progressEvery)
	defer tick.Stop()
	var fatal error
	for next := range order {
		line := <-next
		select {
		case <-tick.C:
			s.notef("handoff: %d submitted, %d refused after %v\n", s.submitted, s.refused, time.Since(began).Round(time.Second))
		default:
		}
		if line.err != nil && !is[*protocol.Error](line.err) {
			if fatal == nil {
				fatal = &lineError{line.view.Line, line.err}
				stop(fatal)
			}
			continue
		}
		if err := s.print(line); err != nil && fatal == nil {
			fatal = err
			stop(err)
		}
	}
	wg.Wait()
	if fatal == nil {
		fatal = readErr
	}
	return errors.Join(s.out.end(), s.verdict(fatal))
}

// feed begins the submission of every line.
func (s *bulk) feed(ctx context.Context, b *broker.Broker, input io.Reader, order chan<- chan sent, wg *sync.WaitGroup) error {
	memory, slots := semaphore.NewWeighted(linesBytesAtOnce), semaphore.NewWeighted(linesAtOnce)
	return eachLine(input, func(n int, text []byte) error {
		weight := int64(len(text))
		if err := slots.Acquire(ctx, 1); err != nil {
			return context.Cause(ctx)
		}
		if err := memory.Acquire(ctx, weight); err != nil {
			return context.Cause(ctx)
		}
		end := make(chan sent, 1)
		select {
		case order <- end:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wg.Go(func() {
			defer slots.Release(1)
			defer memory.Release(weight)
			ticket, err := s.one(ctx, b, text)
			end <- sent{lineView{Line: n, Ticket: ticket}, err}
		})
		return nil
	})
}

func (s *bulk) one(ctx context.Context, b *broker.Broker, text []byte) (ticket string, err error) {
	pkg, err := s.read(text)
	if err != nil {
		return "", err
	}
	if pkg.Parent != "" {
		parent, err := s.parents.of(ctx, b, pkg.Parent)
		switch {
		case err != nil:
			return "", fmt.Errorf("read the parent: %w", err)
		case parent != nil:
			pkg.Inherit(*parent, time.Now())
		}
	}
	prepared, err := s.offline.Prepare(ctx, pkg)
	if err != nil {
		return "", err
	}
	_, err = s.submitOnce(ctx, b, prepared)
	return prepared.Ticket, err
}

// print writes what became of one line: in text its ticket, or "-", so that
// output and input stay side by side.
func (s *bulk) print(line sent) error {
	if line.err == nil {
		s.submitted++
		return s.out.write(line.view)
	}
	s.refused++
	if s.first == nil {
		s.first = &lineError{line.view.Line, line.err}
	}
	if s.text() {
		s.printf("-\n")
	}
	return s.complain(line.view.Line, line.err)
}

// verdict says how it ended as a whole.
func (s *bulk) verdict(fatal error) error {
	switch {
	case fatal != nil:
		return &linesError{fmt.Sprintf("stopped with %d submitted and %d refused: %v; whether the lines after those printed were submitted is not known: run it again, lines with a key are not doubled", s.submitted, s.refused, fatal), fatal}
	case s.refused > 0:
		return &linesError{fmt.Sprintf("%d of %d packages were refused, the first in %v", s.refused, s.submitted+s.refused, s.first), s.first}
	}
	return nil
}

// lineWriter writes lines as they come, in JSON as one document.
type lineWriter struct {
	*app
	begun bool
}

func (w *lineWriter) write(v lineView) error {
	switch {
	case w.text():
		w.printf("%s\n", v.Ticket)
		return nil
	case w.format == formatJSON:
		between := "[\n"
		if w.begun {
			between = ","
		}
		w.begun = true
		if _, err := io.WriteString(w.app.out, between); err != nil {
			return err
		}
	}
	return w.value(v)
}

func (w *lineWriter) end() error {
	if w.format != formatJSON {
		return nil
	}
	closing := "]\n"
	if !w.begun {
		closing = "[]\n"
	}
	_, err := io.WriteString(w.app.out, closing)
	return err
}
