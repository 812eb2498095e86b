package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/protocol"
)

// envStay is set for a program that stays: it reads handoffs as lines of its standard input.
const envStay = "HANDOFF_STAY"

// stayUnread bounds the lines that a program has not read yet: two for each of its last handoffs.
const stayUnread = 8

// stayPauseMax is the longest pause before a program is started again.
const stayPauseMax = 30 * time.Second

// Stay is a Handler that keeps a program running for each slot. A model or a large import is
// loaded once then. Both sides write JSON objects, one a line.
//
// The program reads a stayInput for each handoff: ticket, agent, attempt, fence, lease, limit,
// deadline, brief, and package as Exec gives it to a program. It writes lines with one of these, and
// with the ticket if it likes:
//
//	{"progress": "40 parsing"}       or a protocol.Progress
//	{"extend_ms": 600000, "reason": "…"}
//	{"result": {"body": …}}          a protocol.Result: the handoff is complete
//	{"ack": {"status": …}}           as in HANDOFF_ACK_FILE: refused, asked, escalated, returned
//	{"fail": {"code": …, "message": …, "retryable": false, "retry_after_ms": …, "limit_key": …, "usage": …}}
//
// The last three end the handoff, and the next one follows. Other text goes to the log, as standard
// error does. {"cancel": TICKET, "why": …} is written to a program whose handoff is to stop: it has
// KillGrace to end the handoff with any of the three, and is ended otherwise. Standard input ends
// when the worker does.
//
// A program that dies fails the handoff that it had, like an attempt of Exec, and no other. It is
// started again, after a pause that grows up to 30 s until it ends a handoff again.
type Stay struct {
	*Exec
	log   *slog.Logger
	jobs  chan *stayJob
	ctx   context.Context
	stop  context.CancelFunc
	slots sync.WaitGroup

	mu             sync.Mutex
	busy, programs int
}

// NewStay checks the configuration as NewExec does, and starts one program. More are started as
// handoffs come, as many as the worker has slots. Output and Input of cfg have no effect. Close ends
// them.
func NewStay(cfg ExecConfig, log *slog.Logger) (*Stay, error) {
	e, err := NewExec(cfg)
	if err != nil {
		return nil, err
	}
	s := &Stay{Exec: e, log: cmp.Or(log, slog.New(slog.DiscardHandler)), jobs: make(chan *stayJob), programs: 1}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.slots.Go(s.slot)
	return s, nil
}

// Close ends the programs: their input ends, and after KillGrace they do. It blocks until then.
func (s *Stay) Close() {
	s.stop()
	s.slots.Wait()
}

// stayInput is the line of a handoff.
type stayInput struct {
	Ticket   string          `json:"ticket"`
	Agent    string          `json:"agent"`
	Attempt  int             `json:"attempt"`
	Fence    uint64          `json:"fence"`
	Lease    string          `json:"lease,omitempty"`
	Limit    time.Time       `json:"limit,omitzero"` // when the first clock takes the handoff away
	Deadline time.Time       `json:"deadline,omitzero"`
	Brief    string          `json:"brief"`
	Package  json.RawMessage `json:"package"`
}

// stayOutput is a line of the program.
type stayOutput struct {
	Ticket   string          `json:"ticket"`
	Progress json.RawMessage `json:"progress"`
	ExtendMS int64           `json:"extend_ms"`
	Result   json.RawMessage `json:"result"`
	Ack      json.RawMessage `json:"ack"`
	Fail     *struct {
		Code         string          `json:"code"`
		Message      string          `json:"message"`
		Retryable    *bool           `json:"retryable"` // default true
		RetryAfterMS int64           `json:"retry_after_ms"`
		LimitKey     string          `json:"limit_key"`
		Usage        *protocol.Usage `json:"usage"`
	} `json:"fail"`
}

// stayJob is a handoff at a program.
type stayJob struct {
	ctx  context.Context
	h    Handoff
	line []byte
	done chan stayEnd

	mu      sync.Mutex
	reports []string // of progress, not sent yet
}

type stayEnd struct {
	result protocol.Result
	err    error
}

// Handle gives the handoff to a program that has none. It implements Handler.
func (s *Stay) Handle(ctx context.Context, h Handoff) (protocol.Result, error) {
	since, document, err := h.document(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	limit, _ := h.Limit()
	line, err := protocol.Marshal(stayInput{h.Ticket, h.Agent, h.Attempt, h.Fence, h.lease(), limit, h.Deadline(),
		brief.Markdown(&h.Package, h.State(), since), document})
	if err != nil {
		return protocol.Result{}, Permanent(err)
	}
	s.enter()
	defer s.leave()
	job := &stayJob{ctx: ctx, h: h, line: oneLine(line), done: make(chan stayEnd, 1)}
	select {
	case s.jobs <- job:
	case <-ctx.Done():
		return protocol.Result{}, context.Cause(ctx)
	case <-s.ctx.Done():
		return protocol.Result{}, ErrShutdown
	}
	ended := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { h.followProgress(ctx, job.takeReports, ended) })
	end := <-job.done
	close(ended)
	reporting.Wait()
	return end.result, end.err
}

// enter starts another program if all have a handoff.
func (s *Stay) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy++; s.busy > s.programs && s.ctx.Err() == nil {
		s.programs++
		s.slots.Go(s.slot)
	}
}

func (s *Stay) leave() {
	s.mu.Lock()
	s.busy--
	s.mu.Unlock()
}

func (j *stayJob) takeReports(bool) ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	reports := j.reports
	j.reports = nil
	return reports, nil
}

// oneLine ends JSON with its only newline.
func oneLine(body []byte) []byte {
	var line bytes.Buffer
	if json.Compact(&line, body) != nil {
		line.Write(bytes.ReplaceAll(body, []byte("\n"), []byte(" ")))
	}
	line.WriteByte('\n')
	return line.Bytes()
}

// slot keeps one program running.
func (s *Stay) slot() {
	pause := newBackOff()
	pause.MaxInterval = stayPauseMax
	for s.ctx.Err() == nil {
		one := &stayed{stay: s, said: make(chan []byte)}
		one.program = &program{cfg: s.cfg, command: s.cfg.Command, log: s.log, feed: one.converse, read: one.readLines,
			env: slices.Concat(inherited(s.cfg.Inherit), s.cfg.Env, []string{envStay + "=1"})}
		running, kill := context.WithCancelCause(context.Background())
		one.kill = kill
		state, err := one.run(running)
		kill(nil)
		if err == nil {
			code := state.ExitCode()
			if err = s.failure(one.program, state, code, said{}); code == exitCannotRun || code == exitNotFound {
				err = Stop(fmt.Errorf("%s cannot run: %v", s.cfg.Command[0], err))
			}
		}
		if unfit := (*stopError)(nil); one.job == nil && errors.As(err, &unfit) { // the next handoff's worker learns it
			select {
			case one.job = <-s.jobs:
			case <-s.ctx.Done():
			}
		}
		switch {
		case one.job == nil:
		case one.over != nil:
			one.job.done <- stayEnd{result: one.tooLargeOf(one.over)}
		default:
			one.job.done <- stayEnd{err: err}
		}
		if one.served > 0 || one.job != nil && one.job.ctx.Err() != nil {
			pause.Reset()
		}
		if s.ctx.Err() == nil {
			delay := pause.NextBackOff()
			s.log.Warn("the program has ended; it is started again", "why", err, "after", delay.Round(time.Millisecond))
			sleep(s.ctx, delay)
		}
	}
}

// stayed is one run of a program that stays.
type stayed struct {
	*program
	stay   *Stay
	kill   context.CancelCauseFunc
	said   chan []byte
	over   []byte // the beginning of a line that is too long
	job    *stayJob
	served int
}

// readLines sends the lines of the output to converse, which reads until there are no more.
func (one *stayed) readLines(r io.Reader) {
	defer close(one.said)
	reader := bufio.NewReader(r)
	for {
		var line []byte
		var err error
		for {
			var part []byte
			part, err = reader.ReadSlice('\n')
			if line = append(line, part...); !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
			if int64(len(line)) > one.cfg.OutputBytesMax {
				one.over = line
				one.kill(&Failure{Code: "output_too_large", Err: errors.New(one.tooLargeWords())})
				return
			}
		}
		if len(bytes.TrimSpace(line)) > 0 {
			one.said <- line
		}
		if err != nil {
			return
		}
	}
}

// converse gives the program handoffs until it ends, or Stay does.
func (one *stayed) converse(stdin io.WriteCloser) {
	unread := make(chan []byte, stayUnread)
	var writing sync.WaitGroup
	writing.Go(func() { // a program may not read
		for line := range unread {
			_, _ = stdin.Write(line)
		}
		_ = stdin.Close()
	})
	send := func(line []byte) {
		select {
		case unread <- line:
		default:
			one.kill(&Failure{Code: "input_unread", Err: errors.New("the program does not read its input")})
		}
	}
	for one.next(send) {
	}
	close(unread)
	var why error = &Failure{Code: "output_ended", Err: errors.New("the program has closed its output and went on")}
	if one.stay.ctx.Err() != nil {
		why = ErrShutdown
	}
	time.AfterFunc(one.cfg.KillGrace, func() { one.kill(why) }) // nothing if it has ended by then
	for range one.said {                                        // it may not block in writing
	}
	writing.Wait()
}

// next waits for a handoff and has the program work on it. It returns false if the program is to get
// no further one.
func (one *stayed) next(send func([]byte)) bool {
	select {
	case <-one.stay.ctx.Done():
		return false
	case line, open := <-one.said:
		if open {
			one.logLine("stdout", line)
		}
		return open
	case one.job = <-one.stay.jobs:
	}
	send(one.job.line)
	stopped, grace := one.job.ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case line, open := <-one.said:
			if !open {
				return false
			}
			end := one.saidOf(line)
			if end == nil {
				continue
			}
			one.job.done <- *end
			one.job = nil
			one.served++
			return true
		case <-stopped:
			stopped = nil
			cancel, _ := json.Marshal(map[string]string{"cancel": one.job.h.Ticket, "why": stopReason(context.Cause(one.job.ctx))})
			send(append(cancel, '\n'))
			timer := time.NewTimer(one.cfg.KillGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			one.kill(context.Cause(one.job.ctx))
			return false
		}
	}
}

func stopReason(cause error) string {
	if errors.Is(cause, ErrShutdown) {
		return "shutdown"
	}
	return cleanupReason(cause)
}

// saidOf reads a line that the program wrote during a handoff; nil unless the line ends it.
func (one *stayed) saidOf(line []byte) *stayEnd {
	line = bytes.TrimSpace(line)
	var said stayOutput
	if line[0] != '{' {
		one.logLine("stdout", line)
		return nil
	}
	broken := func(err error) *stayEnd {
		return &stayEnd{result: malformed(line, protocol.CutText(err.Error(), protocol.FailureBytesMax))}
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return broken(fmt.Errorf("a line of the program is no JSON: %w", err))
	}
	if said.Ticket != "" && said.Ticket != one.job.h.Ticket {
		one.logLine("stdout of an earlier handoff", line)
		return nil
	}
	switch {
	case said.Result != nil:
		result, err := protocol.DecodeResult(said.Result)
		if err != nil {
			return broken(err)
		}
		return &stayEnd{result: result}
	case said.Ack != nil:
		s, err := saidInJSON(said.Ack)
		if err != nil {
			return broken(err)
		}
		if decided := s.decision(); decided != nil {
			return &stayEnd{err: decided}
		}
		return broken(protocol.Errorf(protocol.CodeInvalid, "ack.status", "is accepted, which ends no handoff: write a result"))
	case said.Fail != nil:
		f := said.Fail
		return &stayEnd{err: &Failure{Err: errors.New(cmp.Or(f.Message, "the program has failed it")), Code: f.Code,
			Permanent: f.Retryable != nil && !*f.Retryable, RetryAfter: millis(f.RetryAfterMS), LimitKey: f.LimitKey, Usage: f.Usage}}
	case said.Progress != nil, said.ExtendMS > 0:
		report := string(line)
		if said.Progress != nil {
			report = string(said.Progress)
			_ = json.Unmarshal(said.Progress, &report) // of a text
		}
		one.job.mu.Lock()
		one.job.reports = append(one.job.reports, report)
		one.job.mu.Unlock()
		return nil
	}
	return broken(errors.New("a line of a program that stays has one of progress, extend_ms, result, ack, fail; a result is {\"result\": {\"body\": …}}"))
}
