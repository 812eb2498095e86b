package worker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker/output"
)

// outcome reads what a program that has ended says.
func (e *Exec) outcome(h Handoff, p *program, state *os.ProcessState, ackFile, awaitDir string) (protocol.Result, error) {
	said, err := readAck(ackFile)
	ack := said.ack
	switch {
	case err != nil:
		return protocol.Result{}, &Failure{Code: "invalid_ack", Err: fmt.Errorf("HANDOFF_ACK_FILE: %w", err)}
	case said.answer != nil:
		return protocol.Result{}, AnswerEscalation(*said.answer)
	case said.up != nil:
		return protocol.Result{}, said.up
	case said.back != nil:
		return protocol.Result{}, p.rollBack(said.back)
	case ack.Status == protocol.AckRejected || ack.Status == protocol.AckConditional:
		return protocol.Result{}, Refuse(ack)
	}
	if p.stdout.isOver() { // it wrote too much and ended before we could end it
		return protocol.Result{}, &Failure{Code: "output_too_large", Err: fmt.Errorf("wrote more than %s to its standard output", protocol.Size(int64(e.cfg.OutputBytesMax)))}
	}
	last := cmp.Or(p.stderr.last(), state.String())
	switch code := state.ExitCode(); code {
	case ExitComplete:
		return e.result(h, p, awaitDir), nil
	case ExitRejected:
		return protocol.Result{}, Reject(last, ack.SuggestedAlternative)
	case ExitConditional:
		return protocol.Result{}, NeedContext(protocol.CutText(last, protocol.NeedBytesMax))
	case ExitCannotRun, ExitNotFound:
		return protocol.Result{}, Stop(fmt.Errorf("%s cannot run (%s): %s", e.cfg.Command[0], state, last))
	default:
		return protocol.Result{}, e.failure(p, state, code, ack)
	}
}

// result reads what a program has printed, and what it has left to be waited for. A result that
// is malformed is handed in as it came.
func (e *Exec) result(h Handoff, p *program, awaitDir string) protocol.Result {
	printed := p.stdout.buf.Bytes()
	read, err := output.Read(printed, e.cfg.Output)
	if err == nil {
		err = addAwaited(&read.Result, h, awaitDir)
	}
	if err != nil {
		kept := protocol.ResultFromText(printed)
		kept.Malformed = err.Error()
		return kept
	}
	aside, words := read.SetAside, read.Result.SetAside
	if words == "" && read.Result.Awaits() && read.Result.SaysMore() {
		aside, words = printed, "a result that waits is no end: what it says beside its command is kept only if it has nothing to wait for"
	}
	for line := range bytes.Lines(aside) {
		p.logLine("stdout", line)
	}
	if words != "" {
		p.log.Warn("output set aside", "why", protocol.Printable(words))
	}
	return read.Result
}

// failure is what a code that stands for a failed attempt says.
func (e *Exec) failure(p *program, state *os.ProcessState, code int, ack protocol.Ack) error {
	f := &Failure{Err: errors.New(p.message(state)), Code: fmt.Sprintf("exit_%d", code)}
	switch {
	case code < 0: // by a signal
		f.Code = deathBy(state)
	case code == ExitPermanent:
		f.Permanent = true
	case code == ExitRetryLater:
		f.RetryAfter = e.cfg.RetryLater
		if ack.RetryAfterMS > 0 {
			f.RetryAfter = millis(ack.RetryAfterMS)
		}
	}
	return f
}

// message is how a program ended, and the last that it said of it.
func (p *program) message(state *os.ProcessState) string {
	message := state.String()
	if tail := p.stderr.tail(); tail != "" {
		message += ": " + tail
	}
	return message
}

// rollBack adds what the program has printed to what it says of a rollback.
func (p *program) rollBack(back *rollBackError) error {
	partial := p.partial()
	if !partial.SaysMore() {
		return back
	}
	return &rollBackError{reason: back.reason, partial: &partial}
}

// partial is what a program has printed that did not come to its end, or that gives up. Whatever it
// is, it is not what was asked for.
func (p *program) partial() (partial protocol.Result) {
	out := p.stdout.buf.Bytes()
	if p.stdout.isOver() || len(bytes.TrimSpace(out)) == 0 {
		return partial
	}
	partial = protocol.ResultFromText(out) // also of what tries to be a result
	if read, err := output.Read(out, p.cfg.Output); err == nil {
		partial = read.Result
	}
	partial.Status = protocol.Partial
	return partial
}

// said is what a program has written into its acknowledgement file: one of these,
// or nothing. The last three are no acknowledgements of the wire: there they
// are events of their own.
type said struct {
	ack    protocol.Ack
	answer *protocol.Answer
	up     *escalateError
	back   *rollBackError
}

// Words of the acknowledgement file beside those of protocol.Ack.
const (
	saidAnswered  = "answered"
	saidEscalated = "escalated"
	saidReturned  = "returned"
)

// readAck reads the acknowledgement file: JSON, or a word and a reason. No file,
// or an empty one, says nothing. What is not a regular file is an error.
func readAck(path string) (s said, err error) {
	file, err := openRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, protocol.AckBytesMax+1))
	if err != nil {
		return s, err
	}
	if len(body) > protocol.AckBytesMax {
		return s, protocol.Errorf(protocol.CodeTooLarge, "ack", "is over %d bytes", protocol.AckBytesMax)
	}
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0:
		return s, nil
	case body[0] == '{':
		return saidInJSON(body)
	}
	return saidInWords(string(body))
}

// saidInWords reads "rejected no German here" and "conditional: which branch?".
func saidInWords(text string) (s said, err error) {
	word, rest := text, ""
	if i := strings.IndexAny(text, ": \t\r\n"); i >= 0 {
		word, rest = text[:i], strings.TrimSpace(strings.TrimLeft(text[i:], ": \t"))
	}
	if err := checkWord(word); err != nil {
		return s, err
	}
	switch word {
	case saidAnswered:
		s.answer = &protocol.Answer{Text: rest}
		return s, s.answer.Validate()
	case saidEscalated:
		s.up = &escalateError{rationale: rest}
		return s, nil
	case saidReturned:
		s.back = &rollBackError{reason: rest}
		return s, nil
	}
	s.ack.Status = protocol.AckStatus(word)
	switch {
	case rest == "":
	case s.ack.Status == protocol.AckConditional:
		s.ack.NeedsContext = []string{rest}
	default:
		s.ack.Reason = rest
	}
	return s, s.ack.Validate()
}

func checkWord(word string) error {
	words := []string{string(protocol.AckAccepted), string(protocol.AckRejected), string(protocol.AckConditional), saidAnswered, saidEscalated, saidReturned}
	if slices.Contains(words, word) {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "status", "must be one of %s, not %q", strings.Join(words, ", "), protocol.CutText(word, protocol.IDBytesMax))
}

// saidInJSON reads the forms that have more to say.
func saidInJSON(body []byte) (s said, err error) {
	var of struct {
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(body, &of) != nil {
		s.ack, err = protocol.DecodeAck(body) // which says what is wrong with it
		return s, err
	}
	if len(of.Status) == 0 && json.Unmarshal(body, &s.ack) == nil {
		return s, nil // {"retry_after_ms": …}: it goes with the exit code
	}
	var word string
	if json.Unmarshal(of.Status, &word) == nil {
		if err := checkWord(word); err != nil {
			return s, err
		}
	}
	switch word {
	case saidAnswered:
		var answer struct {
			Status string `json:"status"`
			protocol.Answer
		}
		err = decodeOnly(body, &answer)
		if s.answer = &answer.Answer; err == nil {
			err = s.answer.Validate()
		}
	case saidEscalated:
		var up struct{ Status, Rationale, Assessment string }
		err = decodeOnly(body, &up)
		s.up = &escalateError{rationale: up.Rationale, assessment: up.Assessment}
	case saidReturned:
		var back struct{ Status, Reason string }
		err = decodeOnly(body, &back)
		s.back = &rollBackError{reason: back.Reason}
	default:
		s.ack, err = protocol.DecodeAck(body)
	}
	return s, err
}

// decodeOnly reads JSON that has no other fields than to has.
func decodeOnly(body []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return protocol.Errorf(protocol.CodeMalformed, "ack", "%v", err)
	}
	return nil
}
