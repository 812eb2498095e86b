package httpgateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"reflect"
	"strconv"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// view is a handoff as a client that waits for it sees it.
type view struct {
	State dossier.StateView `json:"state"`
	// Sentence is the phase and the awaited event, or the end, in words.
	Sentence   string `json:"sentence"`
	WaitingFor string `json:"waiting_for,omitempty"`
	// Ready reports that the handoff satisfies the condition of the wait.
	Ready bool `json:"ready"`
	// PollAfterMS is when a client that does not wait asks again; 0 when nothing more happens.
	PollAfterMS int64 `json:"poll_after_ms"`
}

func viewOf(s *protocol.State, ready bool) *view {
	v := &view{State: dossier.StateOf(*s), Sentence: explain.Sentence(*s), Ready: ready}
	if !s.Closed {
		v.WaitingFor = explain.WaitingFor(*s).Words
	}
	if !s.Closed || !ready {
		v.PollAfterMS = api.PollAfter(*s).Milliseconds()
	}
	return v
}

// answerOf makes the HTTP answer of an answer of a route: what it shows, its status and its headers.
func (g *Gateway) answerOf(header http.Header, answer any) (int, any) {
	switch answer := answer.(type) {
	case api.Submitted:
		header.Set("Location", g.cfg.BasePath+"/v1/handoffs/"+answer.Ticket)
		if answer.Repeated {
			return http.StatusOK, viewOf(&answer.State, answer.Closed)
		}
		header.Set("Retry-After", strconv.Itoa(int(api.PollMin.Seconds())))
		return http.StatusAccepted, viewOf(&answer.State, answer.Closed)
	case api.Waited:
		return http.StatusOK, viewOf(&answer.State, answer.Ready)
	}
	if v := reflect.ValueOf(answer); v.Kind() == reflect.Slice && v.IsNil() {
		return http.StatusOK, json.RawMessage("[]")
	}
	return http.StatusOK, answer
}

// reply answers with the answer of an operation. A claim that does not reach its worker is released.
func (g *Gateway) reply(w http.ResponseWriter, r *http.Request, session *api.Session, answer any) error {
	status, shown := g.answerOf(w.Header(), answer)
	body, err := protocol.Marshal(shown)
	if err != nil {
		return err
	}
	held, claimed := answer.(api.Held)
	if err := g.send(w, r, status, "application/json", body); err != nil && claimed {
		_, _ = session.Release(context.WithoutCancel(r.Context()), held.Lease, "the answer to the claim could not be sent", nil)
	}
	return nil
}

// send sends an answer. An error is a client that has gone.
func (g *Gateway) send(w http.ResponseWriter, r *http.Request, status int, kind string, body []byte) error {
	if status < http.StatusBadRequest {
		g.answered.Add(1)
	}
	header := w.Header()
	header.Set("Content-Type", kind)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	gone := r.Context().Err() // behind the write, a client that has its answer may close, too
	w.WriteHeader(status)
	_, err := w.Write(body)
	return cmp.Or(err, http.NewResponseController(w).Flush(), gone)
}

// problem is a refusal as application/problem+json.
type problem struct {
	Type         string         `json:"type"`
	Title        string         `json:"title"`
	Status       int            `json:"status"`
	Code         protocol.Code  `json:"code"`
	Field        string         `json:"field,omitempty"`
	Detail       string         `json:"detail"`
	Clock        protocol.Clock `json:"clock,omitempty"` // that took the claim, of lease_lost
	RetryAfterMS int64          `json:"retry_after_ms,omitempty"`
}

// refuse answers with an error. That there is nothing to claim is none.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, caller string, err error) {
	header := w.Header()
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNothingToClaim}) {
		header.Set("Retry-After", strconv.Itoa(int(api.PollMin.Seconds())))
		g.answered.Add(1)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	refusal, ours := api.Refusal(err)
	status := statusOf(refusal.Code)
	switch {
	case r.Context().Err() != nil: // the client is gone: no answer arrives, and nothing has failed
		return
	case ours || refusal.Code == api.CodeFailed:
		g.failed.Add(1)
		g.cfg.Log.Warn("request failed", "caller", caller, "route", r.Pattern, "err", err)
	default:
		g.refused.Add(1)
		g.cfg.Log.Debug("request refused", "caller", caller, "route", r.Pattern, "status", status, "code", refusal.Code, "field", refusal.Field)
	}
	switch status {
	case http.StatusUnauthorized:
		header.Set("WWW-Authenticate", `Bearer realm="handoff"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		header.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(float64(refusal.RetryAfterMS)/1000)))))
	}
	body, _ := protocol.Marshal(problem{ // of texts and numbers it does not fail
		Type: "urn:handoff:problem:" + string(refusal.Code), Title: http.StatusText(status), Status: status, Code: refusal.Code,
		Field: protocol.CutText(refusal.Field, protocol.NameBytesMax), Detail: protocol.CutText(refusal.Message, protocol.ReasonBytesMax),
		Clock: refusal.Clock, RetryAfterMS: refusal.RetryAfterMS})
	_ = g.send(w, r, status, "application/problem+json", body)
}

// statusOf is the HTTP status of a refusal.
func statusOf(code protocol.Code) int { return cmp.Or(statuses[code], http.StatusUnprocessableEntity) }

// Codes of this gateway alone.
const (
	codeUnauthorized protocol.Code = "unauthorized"
	codeMethod       protocol.Code = "method_not_allowed"
	codeMedia        protocol.Code = "unsupported_media"
	codeHost         protocol.Code = "wrong_host"
)

// statuses are those of the codes that are not about the content of a request, which are 422.
var statuses = map[protocol.Code]int{
	protocol.CodeMalformed: 400, protocol.CodeUnknownField: 400, protocol.CodeText: 400, protocol.CodeVersion: 400,
	codeUnauthorized:       401,
	protocol.CodeForbidden: 403, protocol.CodeLeaseInvalid: 403, protocol.CodeHandoffsOff: 403, protocol.CodeAutonomy: 403, protocol.CodeScope: 403,
	protocol.CodeNotFound: 404,
	codeMethod:            405,
	protocol.CodeConflict: 409, protocol.CodeClosed: 409, protocol.CodeIllegal: 409, protocol.CodeLeaseLost: 409, protocol.CodeKeyReused: 409,
	protocol.CodeGone: 409, protocol.CodeLockBusy: 409, protocol.CodeDeadlock: 409,
	protocol.CodeTooLarge: 413,
	codeMedia:             415,
	codeHost:              421,
	protocol.CodeBusy:     429,
	api.CodeFailed:        500, protocol.CodeUnreadable: 500,
	protocol.CodeUnreachable: 503, protocol.CodeBehind: 503, protocol.CodeBreakerOpen: 503,
}
