package worker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// outcome reads what a program that has ended says.
func (e *Exec) outcome(p *program, state *os.ProcessState, ackFile string) (protocol.Result, error) {
	ack, err := readAck(ackFile)
	if err != nil {
		return protocol.Result{}, &Failure{Code: "invalid_ack", Err: fmt.Errorf("HANDOFF_ACK_FILE: %w", err)}
	}
	if ack.Status == protocol.AckRejected || ack.Status == protocol.AckConditional {
		return protocol.Result{}, Refuse(ack)
	}
	if p.stdout.isOver() { // it wrote too much and ended before we could end it
		return protocol.Result{}, &Failure{Code: "output_too_large", Err: fmt.Errorf("wrote more than %d bytes to its standard output", e.cfg.OutputBytesMax)}
	}
	last := cmp.Or(p.stderr.last(), state.String())
	switch code := state.ExitCode(); code {
	case ExitComplete:
		return protocol.ResultFromOutput(p.stdout.buf.Bytes()), nil
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

// failure is what a code that stands for a failed attempt says.
func (e *Exec) failure(p *program, state *os.ProcessState, code int, ack protocol.Ack) error {
	message := state.String()
	if tail := p.stderr.tail(); tail != "" {
		message += ": " + tail
	}
	f := &Failure{Err: errors.New(message), Code: fmt.Sprintf("exit_%d", code)}
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

// readAck reads the acknowledgement file: JSON, or a word and a reason. No file,
// or an empty one, is the zero Ack.
func readAck(path string) (ack protocol.Ack, err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return ack, nil
	}
	if err != nil {
		return ack, err
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, protocol.AckBytesMax+1))
	if err != nil {
		return ack, err
	}
	if len(body) > protocol.AckBytesMax {
		return ack, protocol.Errorf(protocol.CodeTooLarge, "ack", "is over %d bytes", protocol.AckBytesMax)
	}
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0:
		return ack, nil
	case body[0] != '{':
		ack = ackFromWords(string(body))
		return ack, ack.Validate()
	}
	if json.Unmarshal(body, &ack) == nil && ack.Status == "" {
		return ack, nil // {"retry_after_ms": …}: it goes with the exit code
	}
	return protocol.DecodeAck(body)
}

// ackFromWords reads "rejected no German here" and "conditional: which branch?".
func ackFromWords(text string) protocol.Ack {
	word, rest := text, ""
	if i := strings.IndexAny(text, ": \t\r\n"); i >= 0 {
		word, rest = text[:i], strings.TrimSpace(strings.TrimLeft(text[i:], ": \t"))
	}
	ack := protocol.Ack{Status: protocol.AckStatus(word)}
	switch {
	case rest == "":
	case ack.Status == protocol.AckConditional:
		ack.NeedsContext = []string{rest}
	default:
		ack.Reason = rest
	}
	return ack
}

// input is the package as the program finds it: as submitted, or with what
// the answers add.
func (e *Exec) input(h Handoff) ([]byte, error) {
	if len(h.Answers) == 0 {
		return h.Raw, nil
	}
	var pkg, ctx, variables map[string]json.RawMessage
	if err := json.Unmarshal(h.Raw, &pkg); err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	if err := unmarshalMap(pkg["context"], &ctx); err != nil {
		return nil, fmt.Errorf("package: context: %w", err)
	}
	if err := unmarshalMap(ctx["variables"], &variables); err != nil {
		return nil, fmt.Errorf("package: context.variables: %w", err)
	}
	for _, answer := range h.Answers {
		for name, value := range answer.Variables {
			variables[name] = value
		}
	}
	var err1, err2, err3 error
	ctx["variables"], err1 = marshal(variables)
	pkg["context"], err2 = marshal(ctx)
	pkg["supplements"], err3 = marshal(h.Answers)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("package with its supplements: %w", err)
	}
	return marshal(pkg)
}

// unmarshalMap reads an object that may be absent; the map is never nil after it.
func unmarshalMap(raw json.RawMessage, to *map[string]json.RawMessage) error {
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, to); err != nil {
			return err
		}
	}
	if *to == nil {
		*to = map[string]json.RawMessage{}
	}
	return nil
}

// marshal writes JSON without escaping <, > and &: a shell script may read it.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(buf.Bytes(), "\n"), err
}
