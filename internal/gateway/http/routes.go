package httpgateway

import (
	"cmp"
	"context"
	"reflect"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// route is a method and a path with the operation behind them. The parameters of the path have the
// names of fields of its request.
type route struct {
	method, path, op string
	// body names the field of the request that the body of the HTTP request is; "*" means that its
	// fields are those of the body. Without a body the query has the other fields.
	body string
	// chain is the operation with ?chain=1; empty if the route has no such parameter.
	chain string
	// name and doc describe the route, where it is not the operation.
	name, doc string
	// do replaces the operation, whose role and limits it keeps, and stream answers with a stream. in
	// and out are the types of the request and the answer, where they are not the operation's.
	do      func(ctx context.Context, s *api.Session, request []byte) (any, error)
	stream  func(ctx context.Context, s *api.Session, request []byte, out *stream) error
	in, out reflect.Type

	inPath []string // the parameters of the path
	fields []field  // of in
}

// leases is the beginning of the paths of reports. Their lease is in a header: proxies log paths.
const leases = "/v1/lease/"

// hintsRoute serves the page, too, with a pause, for callers with a session.
var hintsRoute = route{method: "GET", path: "/v1/events", op: "List", name: "Hints", doc: "follow the handoffs of a fleet, by hints",
	stream: hints(0), in: reflect.TypeFor[api.HintFilter]()}.filled()

// routes have names of their own.
var routes = []route{
	{method: "POST", path: "/v1/handoffs", op: "Submit", body: "package", out: reflect.TypeFor[view]()},
	{method: "GET", path: "/v1/handoffs", op: "List"},
	{method: "GET", path: "/v1/handoffs/{ticket}", op: "Wait", chain: "WaitChain", out: reflect.TypeFor[view]()},
	{method: "GET", path: "/v1/handoffs/{ticket}/result", op: "Result", chain: "ChainResult"},
	{method: "GET", path: "/v1/handoffs/{ticket}/why", op: "Why"},
	{method: "GET", path: "/v1/handoffs/{ticket}/show", op: "History", name: "show", do: read(dossier.Show), in: ticketOnly, out: reflect.TypeFor[dossier.Handoff]()},
	{method: "GET", path: "/v1/handoffs/{ticket}/tree", op: "History", name: "tree", do: read(dossier.TreeOf), in: ticketOnly, out: reflect.TypeFor[dossier.Tree]()},
	{method: "GET", path: "/v1/handoffs/{ticket}/events", op: "History", name: "Changes", doc: "follow the changes of a handoff, or of its chain",
		stream: changes, in: reflect.TypeFor[changesRequest]()},
	{method: "POST", path: "/v1/handoffs/{ticket}/answer", op: "Answer", body: "answer"},
	{method: "POST", path: "/v1/handoffs/{ticket}/approval", op: "Approve", body: "*", do: decide, in: reflect.TypeFor[verdict]()},
	{method: "POST", path: "/v1/handoffs/{ticket}/cancel", op: "Cancel", body: "*"},
	{method: "POST", path: "/v1/agents/{agent}/claims", op: "Claim", body: "*"},
	{method: "POST", path: "/v1/lease/acknowledge", op: "Acknowledge", body: "ack"},
	{method: "POST", path: "/v1/lease/heartbeat", op: "Heartbeat", body: "*"},
	{method: "POST", path: "/v1/lease/progress", op: "Progress", body: "progress"},
	{method: "POST", path: "/v1/lease/complete", op: "Complete", body: "result"},
	{method: "POST", path: "/v1/lease/fail", op: "Fail", body: "*"},
	{method: "POST", path: "/v1/lease/release", op: "Release", body: "*"},
	{method: "POST", path: "/v1/lease/handoff", op: "HandOff", body: "*"},
	{method: "POST", path: "/v1/lease/await", op: "Await", body: "*"},
	{method: "POST", path: "/v1/lease/escalate", op: "Escalate", body: "*"},
	{method: "POST", path: "/v1/lease/spend", op: "Spend", body: "usage"},
	{method: "POST", path: "/v1/lease/decide", op: "Decide", body: "decision"},
	{method: "POST", path: "/v1/lease/answer", op: "AnswerHeld", body: "answer"},
	{method: "POST", path: "/v1/lease/rollback", op: "RollBackHeld", body: "*"},
	{method: "POST", path: "/v1/lease/lock", op: "Lock", body: "*"},
	{method: "POST", path: "/v1/lease/unlock", op: "Unlock", body: "*"},
	{method: "POST", path: "/v1/lease/variables", op: "SetVariables", body: "*"},
	{method: "GET", path: "/v1/lease/workspace", op: "HeldWorkspace"},
	{method: "GET", path: "/v1/inbox", op: "Inbox"},
	{method: "POST", path: "/v1/signals/{name}", op: "SendSignal", body: "payload"},
}

// allRoutes are routes, and one for each other operation.
func allRoutes() []route {
	named, all := map[string]bool{"Deny": true}, []route{hintsRoute}
	for _, rt := range routes {
		if all = append(all, rt.filled()); rt.name == "" {
			named[rt.op], named[rt.chain] = true, true
		}
	}
	for _, op := range api.Operations {
		if !named[op.Name] {
			all = append(all, route{method: "POST", path: "/v1/ops/" + op.Name, op: op.Name, body: "*"}.filled())
		}
	}
	return all
}

// filled fills in the operation's part of a route.
func (rt route) filled() route {
	op := api.OperationOf(rt.op)
	rt.name, rt.doc = cmp.Or(rt.name, op.Name), cmp.Or(rt.doc, op.Doc)
	if rt.in == nil {
		rt.in = op.Request
	}
	if rt.out == nil {
		rt.out = op.Answer
	}
	for part := range strings.SplitSeq(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			rt.inPath = append(rt.inPath, strings.TrimSuffix(name, "}"))
		}
	}
	rt.fields = fieldsOf(rt.in)
	return rt
}

type ticketRequest struct {
	Ticket string `json:"ticket"`
}

var ticketOnly = reflect.TypeFor[ticketRequest]()

// read adapts a view of a handoff.
func read[V any](of func(context.Context, dossier.Reader, string) (V, error)) func(context.Context, *api.Session, []byte) (any, error) {
	return func(ctx context.Context, s *api.Session, body []byte) (any, error) {
		var request ticketRequest
		err := protocol.DecodeStrict(body, "request", requestMin, &request)
		if err == nil {
			request.Ticket, err = protocol.ParseTicket(request.Ticket)
		}
		if err != nil {
			return nil, err
		}
		return of(ctx, s, request.Ticket)
	}
}

// verdict is the request to approve a handoff, or to deny it.
type verdict struct {
	Approve *bool `json:"approve"`
	api.Verdict
}

func decide(ctx context.Context, s *api.Session, body []byte) (any, error) {
	var request verdict
	if err := protocol.DecodeStrict(body, "request", requestMin, &request); err != nil {
		return nil, err
	}
	switch {
	case request.Approve == nil:
		return nil, protocol.Errorf(protocol.CodeMissing, "approve", "is missing: true approves, false denies")
	case *request.Approve:
		return s.Approve(ctx, request.Verdict)
	}
	return s.Deny(ctx, request.Verdict)
}
