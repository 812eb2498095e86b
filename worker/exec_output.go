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
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker/output"
)

// limited keeps the written bytes, up to most of them, and closes over when there is more.
// It goes on swallowing then: the writer is to be ended, not blocked.
type limited struct {
	most int64
	buf  bytes.Buffer
	over chan struct{}
	once sync.Once
}

func (l *limited) Write(b []byte) (int, error) {
	fits := b[:min(int64(len(b)), l.most-int64(l.buf.Len()))]
	_, err := l.buf.Write(fits)
	if len(fits) < len(b) {
		l.once.Do(func() { close(l.over) })
	}
	return len(b), err
}

func (l *limited) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

const (
	// lineBytesMax is how much of a line of standard error is one line of the log.
	lineBytesMax = 8 << 10
	// tailLines and tailBytesMax bound the quotation in a failure's message.
	tailLines    = 10
	tailBytesMax = 2 << 10
	// keptLines and keptBytesMax bound the lines kept for that: secrets are taken out
	// before the last lines are, for half a key is not known for one.
	keptLines    = 200
	keptBytesMax = 64 << 10
)

// lines logs its input line by line and keeps the last lines.
type lines struct {
	log      *slog.Logger
	redactor *redact.Redactor
	kept     []string
	bytes    int // of kept
}

func (l *lines) readFrom(r io.Reader) {
	reader := bufio.NewReaderSize(r, lineBytesMax)
	for {
		line, err := reader.ReadSlice('\n')
		if text := printableLine(line); text != "" {
			l.log.Info("stderr", "line", text)
			l.keep(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// printableLine is a line as the log has it; empty where it holds nothing.
func printableLine(line []byte) string {
	text := strings.TrimRight(string(line), "\r\n")
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return protocol.Printable(strings.ToValidUTF8(text, "\uFFFD"))
}

// logLine logs a line of a program's output, up to lineBytesMax of it.
func (p *program) logLine(what string, line []byte) {
	if text := printableLine(line[:min(len(line), lineBytesMax)]); text != "" {
		p.log.Info(what, "line", text)
	}
}

func (l *lines) keep(line string) {
	l.kept = append(l.kept, line)
	l.bytes += len(line)
	for len(l.kept) > keptLines || l.bytes > keptBytesMax {
		l.bytes -= len(l.kept[0])
		l.kept = l.kept[1:]
	}
}

// last returns the last line, without its surrounding space.
func (l *lines) last() string {
	if len(l.kept) == 0 {
		return ""
	}
	return protocol.CutText(strings.TrimSpace(l.kept[len(l.kept)-1]), tailBytesMax)
}

// tail returns the last lines without secrets, or the end of these lines if they are long. It has no
// context, since the lines of a program that was ended are wanted too.
func (l *lines) tail() string {
	text, err := l.redactor.Text(context.Background(), strings.Join(l.kept, "\n"))
	if err != nil {
		return ""
	}
	kept := strings.Split(text, "\n")
	text = strings.Join(kept[max(0, len(kept)-tailLines):], "\n")
	if cut := len(text) - tailBytesMax; cut > 0 {
		text = "…" + strings.ToValidUTF8(text[cut:], "")
	}
	return text
}

// outcome reads the outcome of a program that has ended.
func (e *Exec) outcome(h Handoff, p *program, state *os.ProcessState, ackFile, awaitDir string) (protocol.Result, error) {
	said, err := readAck(ackFile)
	ack := said.ack
	switch code := state.ExitCode(); {
	case err != nil && (code < 0 || code == exitRetryLater): // it was cut off in its writing, or asks to be repeated
		failure := e.failure(p, state, code, said)
		failure.Err = fmt.Errorf("%w; HANDOFF_ACK_FILE: %w", failure.Err, err)
		return protocol.Result{}, failure
	case err != nil:
		return p.unreadAck(ackFile, err), nil
	case said.back != nil:
		return protocol.Result{}, p.rollBack(said.back)
	}
	if err := said.decision(); err != nil {
		return protocol.Result{}, err
	}
	last := cmp.Or(p.stderr.last(), state.String())
	switch code := state.ExitCode(); code {
	case exitComplete:
		return e.result(h, p, awaitDir), nil
	case exitRejected:
		return protocol.Result{}, Reject(last, ack.SuggestedAlternative)
	case exitConditional:
		return protocol.Result{}, NeedContext(protocol.CutText(last, protocol.NeedBytesMax))
	case exitCannotRun, exitNotFound:
		return protocol.Result{}, Stop(fmt.Errorf("%s cannot run (%s): %s", e.cfg.Command[0], state, last))
	default:
		return protocol.Result{}, e.failure(p, state, code, said)
	}
}

// result reads the output of a program, and the packages that it waits for. A result that
// is malformed is handed in as it came.
func (e *Exec) result(h Handoff, p *program, awaitDir string) protocol.Result {
	printed := p.stdout.buf.Bytes()
	read, err := output.Read(printed, e.cfg.Output)
	if err == nil {
		err = addAwaited(&read.Result, h, awaitDir)
	}
	if err != nil {
		return malformed(printed, err.Error())
	}
	if read.Result.Awaits() && len(bytes.TrimSpace(printed)) == 0 { // its children are in its directory
		read.Result.SetAside = ""
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

// tooLarge is the result of a program that has written more than it may: malformed, with the first
// part of the output. To run it again would cost as much, and the output would get no smaller.
func (p *program) tooLarge() protocol.Result {
	return p.tooLargeOf(p.stdout.buf.Bytes())
}

func (p *program) tooLargeOf(kept []byte) protocol.Result {
	return malformed(kept[:min(len(kept), outputKeptBytes)], p.tooLargeWords())
}

// malformed is the result of an output that is kept as it came.
func malformed(kept []byte, why string) protocol.Result {
	result := protocol.ResultFromText(kept)
	result.Malformed = why
	return result
}

// tooLargeWords names both limits. The output itself may still be read then.
func (p *program) tooLargeWords() string {
	return fmt.Sprintf("wrote more than %s to its standard output; its first %s are kept; large output is better handed off as an artifact",
		protocol.Size(p.cfg.OutputBytesMax), protocol.Size(min(p.cfg.OutputBytesMax, outputKeptBytes)))
}

// unreadAck is the result of a program whose acknowledgement cannot be read: malformed, with the
// output, or else with the acknowledgement. To run it again would cost as much.
func (p *program) unreadAck(ackFile string, err error) protocol.Result {
	kept := p.stdout.buf.Bytes()
	if len(bytes.TrimSpace(kept)) == 0 {
		kept, _ = ackBytes(ackFile)
	}
	return malformed(kept, protocol.CutText("the acknowledgement in HANDOFF_ACK_FILE cannot be read: "+err.Error(), protocol.FailureBytesMax))
}

// failure makes the error of an exit code for a failed attempt.
func (e *Exec) failure(p *program, state *os.ProcessState, code int, s said) *Failure {
	f := &Failure{Err: errors.New(p.message(state)), Code: fmt.Sprintf("exit_%d", code)}
	switch {
	case code < 0: // by a signal
		f.Code = deathBy(state)
	case code == exitPermanent:
		f.Permanent = true
	case code == exitRetryLater:
		f.RetryAfter = retryLater
		if f.LimitKey = s.limitKey; s.ack.RetryAfterMS > 0 {
			f.RetryAfter = millis(s.ack.RetryAfterMS)
		}
	}
	return f
}

// message is how a program ended, and its last lines of standard error.
func (p *program) message(state *os.ProcessState) string {
	message := state.String()
	if tail := p.stderr.tail(); tail != "" {
		message += ": " + tail
	}
	return message
}

// rollBack adds the program's output to its rollback, as the partial result.
func (p *program) rollBack(back *rollBackError) error {
	partial := p.partial()
	if !partial.SaysMore() {
		return back
	}
	return &rollBackError{reason: back.reason, partial: &partial}
}

// partial reads the output of a program that was stopped, or that gives up, as a partial result.
func (p *program) partial() (partial protocol.Result) {
	out := p.stdout.buf.Bytes()
	if p.stdout.isOver() || len(bytes.TrimSpace(out)) == 0 {
		return partial
	}
	partial = protocol.ResultFromText(out) // also of a broken result
	if read, err := output.Read(out, p.cfg.Output); err == nil {
		partial = read.Result
	}
	partial.Status = protocol.Partial
	return partial
}

// said is the content of an acknowledgement file: one of these, or nothing. The last three are no
// acknowledgements of the wire: there they are events of their own.
type said struct {
	ack    protocol.Ack
	answer *protocol.Answer
	up     *escalateError
	back   *rollBackError

	limitKey string // of exit code 75
}

// decision returns the error that takes the place of a result; nil if the work goes on.
func (s said) decision() error {
	switch {
	case s.answer != nil:
		return AnswerEscalation(*s.answer)
	case s.up != nil:
		return s.up
	case s.back != nil:
		return s.back
	case s.ack.Status == protocol.AckRejected || s.ack.Status == protocol.AckConditional:
		return Refuse(s.ack)
	}
	return nil
}

// Words of the acknowledgement file in addition to those of protocol.Ack.
const (
	saidAnswered  = "answered"
	saidEscalated = "escalated"
	saidReturned  = "returned"
)

// readAck reads the acknowledgement file: JSON, or a word and a reason. No file,
// or an empty one, is no acknowledgement. A file that is not regular is an error.
func readAck(path string) (s said, err error) {
	body, err := ackBytes(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if len(body) > protocol.AckBytesMax {
		return s, protocol.Errorf(protocol.CodeTooLarge, "ack", "is over %d bytes", protocol.AckBytesMax)
	}
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\xEF\xBB\xBF")))
	switch {
	case len(body) == 0:
		return s, nil
	case body[0] == '{':
		return saidInJSON(body)
	}
	return saidInWords(string(body))
}

// ackBytes reads the acknowledgement file, and a byte over its limit at most.
func ackBytes(path string) ([]byte, error) {
	return readRegular(path, protocol.AckBytesMax+1)
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
		return s, s.up.check()
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

// saidInJSON reads the forms with more fields.
func saidInJSON(body []byte) (s said, err error) {
	if body, err = plainAck(body); err != nil {
		return s, err
	}
	var of struct {
		Status   json.RawMessage `json:"status"`
		LimitKey string          `json:"limit_key"`
	}
	if json.Unmarshal(body, &of) != nil {
		s.ack, err = protocol.DecodeAck(body) // its error names the field
		return s, err
	}
	if len(of.Status) == 0 && json.Unmarshal(body, &s.ack) == nil {
		s.limitKey = of.LimitKey
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
		if err == nil {
			err = s.up.check()
		}
	case saidReturned:
		var back struct{ Status, Reason string }
		err = decodeOnly(body, &back)
		s.back = &rollBackError{reason: back.Reason}
	default:
		if s.ack, err = protocol.DecodeAck(body); err == nil {
			err = s.ack.Validate()
		}
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

// ackAliases are the names that other documents of handoffs have for the fields of an
// acknowledgement; empty is a field that the worker knows better.
var ackAliases = map[string]string{
	"timestamp": "", "agentId": "", "agent_id": "",
	"reasonCode": "reason_code", "suggestedAlternative": "suggested_alternative", "retryAfterMs": "retry_after_ms",
	"needsContext": "needs_context", "needsMoreContext": "needs_context", "needs_more_context": "needs_context",
	"needsPermission": "needs_permission", "estimatedCompletionMs": "estimated_completion_ms",
}

// plainAck returns an acknowledgement in the form of the wire: its needs may be in an object of their
// own (conditions), a single need may be a text in place of a list, and fields may have the names of
// ackAliases.
func plainAck(body []byte) ([]byte, error) {
	var of map[string]json.RawMessage
	if json.Unmarshal(body, &of) != nil {
		return body, nil // the decoder finds the place
	}
	status := strings.Trim(string(of["status"]), `"`)
	if len(of) == 0 || status == saidAnswered || status == saidEscalated || status == saidReturned {
		return body, nil
	}
	var conditions map[string]json.RawMessage
	if raw, nested := of["conditions"]; nested {
		if json.Unmarshal(raw, &conditions) != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, "conditions", "must be an object with needs_context, needs_permission or estimated_completion_ms")
		}
		delete(of, "conditions")
	}
	plain, changed := map[string]json.RawMessage{}, len(conditions) > 0
	for _, fields := range []map[string]json.RawMessage{of, conditions} {
		for name, value := range fields {
			known, alias := ackAliases[name]
			if !alias {
				known = name
			}
			var need string
			if (known == "needs_context" || known == "needs_permission") && json.Unmarshal(value, &need) == nil && string(value) != "null" {
				value, changed = slices.Concat([]byte("["), value, []byte("]")), true
			}
			changed = changed || alias
			if _, twice := plain[known]; twice {
				return nil, protocol.Errorf(protocol.CodeInvalid, name, "is given twice, once as %s", known)
			}
			if known != "" {
				plain[known] = value
			}
		}
	}
	if !changed { // its places are those of the file
		return body, nil
	}
	return json.Marshal(plain)
}

// EnvLease has the lease of the program. In EnvAwaitDir "handoff submit --await block" leaves the
// packages that the program's result waits for, in files named 1, 2, ….
const (
	EnvLease    = "HANDOFF_LEASE"
	EnvAwaitDir = "HANDOFF_AWAIT_DIR"
)

// addAwaited puts the packages that a program has left before those that its result waits for. A
// program that has run again, and left only packages whose ends it has, has left nothing.
func addAwaited(result *protocol.Result, h Handoff, dir string) error {
	var list []json.RawMessage
	for n := 1; n <= protocol.AwaitMax; n++ {
		entry, err := readEntry(filepath.Join(dir, strconv.Itoa(n)))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s/%d: %w", EnvAwaitDir, n, err)
		}
		list = append(list, entry)
	}
	if len(list) == 0 || !result.Awaits() && hasEndsOf(h, list) {
		return nil
	}
	command := protocol.Command{}
	if result.Command != nil {
		command = *result.Command
	}
	if result.Awaits() {
		var said []json.RawMessage
		if err := json.Unmarshal(command.Await, &said); err != nil {
			return fmt.Errorf("command.await: %w", err)
		}
		list = append(list, said...)
	}
	all, err := json.Marshal(list)
	command.Await = all
	result.Command = &command
	return err
}

// hasEndsOf reports whether the program was given the ends of all these.
func hasEndsOf(h Handoff, list []json.RawMessage) bool {
	s := h.State()
	if s.Children == nil || s.Children.Received == "" {
		return false
	}
	all, err := json.Marshal(list)
	if err != nil {
		return false
	}
	packages, err := protocol.Await(h.Package, h.Agent, protocol.Result{Command: &protocol.Command{Await: all}})
	if err != nil {
		return false
	}
	var cells []string
	for _, pkg := range packages {
		key, err := protocol.ChildKeyOf(pkg)
		if err != nil {
			return false
		}
		n, cell, made := lifecycle.FindChild(s, key, cells...)
		if !made || !s.Children.Received.Has(n) {
			return false
		}
		cells = append(cells, cell)
	}
	return true
}

func readEntry(path string) (json.RawMessage, error) {
	body, err := readRegular(path, protocol.PackageBytesMax+1)
	switch {
	case err != nil:
		return nil, err
	case !json.Valid(body):
		return nil, errors.New("it is no JSON")
	}
	return body, nil
}
