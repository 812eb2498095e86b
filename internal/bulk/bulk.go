// Package bulk submits the packages of a file of lines, many at a time.
//
// Lines are submitted side by side, and what became of them is told in their order. A line
// that is refused does not stop the others; an engine that cannot be reached does.
package bulk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// atOnce is how many lines are submitted side by side: enough for an engine that syncs
	// every write to sync many of them at once.
	atOnce = 128
	// bytesAtOnce bounds how much of the file is in memory.
	bytesAtOnce = 2 * protocol.PackageBytesMax
	// checkErrorsMax is how many wrong lines a check tells of. A few of them show that two
	// files were mixed up.
	checkErrorsMax = 20
	// progressEvery is how often a run says how far it is.
	progressEvery = 2 * time.Second
)

// Job says how lines become handoffs.
type Job struct {
	// Complete lays over the package of a line what is the same for all of them.
	Complete func(protocol.Package) (protocol.Package, error)
	// Prepare checks a package without an engine.
	Prepare func(context.Context, protocol.Package) (broker.Prepared, error)
	// Parent reads what a package takes over from its parent.
	Parent func(ctx context.Context, ticket string) (*protocol.Parent, error)
	// Submit submits a package.
	Submit func(context.Context, broker.Prepared) error
	// Done is told what became of each line, in their order.
	Done func(Line) error
	// Progress is told every two seconds how far a run is.
	Progress func(submitted, refused int, took time.Duration)
}

// Line is what became of one line: it has a ticket, or an error.
type Line struct {
	N        int // from 1
	Ticket   string
	Err      error
	Checking bool // nothing is submitted yet
}

// LineError is what is wrong with one line.
type LineError struct {
	N   int
	Err error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.N, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// Error says how a job ended that did not go well. It wraps the worst of its errors, or else
// the first.
type Error struct {
	message string
	err     error
}

func (e *Error) Error() string { return e.message }
func (e *Error) Unwrap() error { return e.err }

func refused(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e)
}

// Check checks every line as far as that goes without an engine, and tells Done of those that
// are wrong. It returns how many lines there are.
func (j Job) Check(ctx context.Context, input io.Reader) (n int, err error) {
	var wrong []error
	err = eachLine(input, func(line int, text []byte) error {
		n++
		if err := ctx.Err(); err != nil {
			return err
		}
		pkg, err := j.read(text)
		if err == nil {
			_, err = j.Prepare(ctx, pkg)
		}
		if !refused(err) {
			return err
		}
		if wrong = append(wrong, &LineError{line, err}); len(wrong) <= checkErrorsMax {
			return j.Done(Line{N: line, Err: err, Checking: true})
		}
		return nil
	})
	if err == nil && len(wrong) > 0 {
		err = &Error{fmt.Sprintf("%d of %d packages are not in order; nothing was written (--keep-going submits the others)", len(wrong), n), wrong[0]}
	}
	return n, err
}

// Run submits the lines, many at a time, and tells Done what became of them. An engine that
// cannot be reached ends it. It returns how many were submitted.
func (j Job) Run(ctx context.Context, input io.Reader) (submitted int, err error) {
	r := &run{Job: j}
	err = r.all(ctx, input)
	return r.submitted, err
}

// run is a job on its way.
type run struct {
	Job
	parents lastParent

	submitted, refused int
	first              error // the first line that was refused
}

func (r *run) all(ctx context.Context, input io.Reader) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	order := make(chan chan Line, atOnce)
	var readErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(order)
		readErr = r.feed(ctx, input, order, &wg)
	})
	began, tick := time.Now(), time.NewTicker(progressEvery)
	defer tick.Stop()
	var fatal error
	for next := range order {
		line := <-next
		select {
		case <-tick.C:
			r.Progress(r.submitted, r.refused, time.Since(began))
		default:
		}
		if line.Err != nil && !refused(line.Err) {
			if fatal == nil {
				fatal = &LineError{line.N, line.Err}
				stop(fatal)
			}
			continue
		}
		if err := r.done(line); err != nil && fatal == nil {
			fatal = err
			stop(err)
		}
	}
	wg.Wait()
	if fatal == nil {
		fatal = readErr
	}
	return r.verdict(fatal)
}

// feed begins the submission of every line.
func (r *run) feed(ctx context.Context, input io.Reader, order chan<- chan Line, wg *sync.WaitGroup) error {
	memory, slots := semaphore.NewWeighted(bytesAtOnce), semaphore.NewWeighted(atOnce)
	return eachLine(input, func(n int, text []byte) error {
		weight := int64(len(text))
		if err := slots.Acquire(ctx, 1); err != nil {
			return context.Cause(ctx)
		}
		if err := memory.Acquire(ctx, weight); err != nil {
			return context.Cause(ctx)
		}
		end := make(chan Line, 1)
		select {
		case order <- end:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wg.Go(func() {
			defer slots.Release(1)
			defer memory.Release(weight)
			ticket, err := r.one(ctx, text)
			end <- Line{N: n, Ticket: ticket, Err: err}
		})
		return nil
	})
}

// read makes the package of a line.
func (j Job) read(line []byte) (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(line)
	if err != nil {
		return pkg, err
	}
	return j.Complete(pkg)
}

func (r *run) one(ctx context.Context, text []byte) (ticket string, err error) {
	pkg, err := r.read(text)
	if err != nil {
		return "", err
	}
	if pkg.Parent != "" {
		parent, err := r.parents.of(ctx, r.Parent, pkg.Parent)
		switch {
		case err != nil:
			return "", fmt.Errorf("read the parent: %w", err)
		case parent != nil:
			pkg.Inherit(*parent, time.Now())
		}
	}
	prepared, err := r.Prepare(ctx, pkg)
	if err != nil {
		return "", err
	}
	return prepared.Ticket, r.Submit(ctx, prepared)
}

// done counts one line and tells of it.
func (r *run) done(line Line) error {
	if line.Err == nil {
		r.submitted++
		return r.Done(line)
	}
	r.refused++
	if r.first == nil {
		r.first = &LineError{line.N, line.Err}
	}
	return r.Done(line)
}

// verdict says how it ended as a whole.
func (r *run) verdict(fatal error) error {
	switch {
	case fatal != nil:
		return &Error{fmt.Sprintf("stopped with %d submitted and %d refused: %v; whether the lines after those printed were submitted is not known: run it again, lines with a key are not doubled", r.submitted, r.refused, fatal), fatal}
	case r.refused > 0:
		return &Error{fmt.Sprintf("%d of %d packages were refused, the first in %v", r.refused, r.submitted+r.refused, r.first), r.first}
	}
	return nil
}

// lastParent keeps the parent that was read last: as a rule all lines have the same.
type lastParent struct {
	mu     sync.Mutex
	ticket string
	parent *protocol.Parent
}

func (l *lastParent) of(ctx context.Context, read func(context.Context, string) (*protocol.Parent, error), ticket string) (*protocol.Parent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ticket == ticket {
		return l.parent, nil
	}
	parent, err := read(ctx, ticket)
	if err == nil {
		l.ticket, l.parent = ticket, parent
	}
	return parent, err
}

// eachLine calls do with each line that is not blank, and its number from 1. The
// line is do's to keep.
func eachLine(from io.Reader, do func(n int, line []byte) error) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if errors.Is(err, errLineTooLong) {
			return &LineError{n, protocol.Errorf(protocol.CodeTooLarge, "package", "is over %d bytes; hand large files over as artifacts", protocol.PackageBytesMax)}
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
