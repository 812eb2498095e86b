// Package api has every operation on handoffs, with its rules, for all ways in.
//
// The operations are methods of small interfaces: Source submits handoffs and follows them, Holder
// claims them and reports by a lease, Reader reads their data, Operator intervenes, and Directory
// has the agents. Operations lists them all, with the role that each needs.
//
// Service is the implementation. It works on a broker.Broker, and Service.As binds it to a Caller.
// Roles and visibility are checked only there: a gateway authenticates its caller, decodes, calls
// one operation, and encodes. Other implementations forward to a Service (internal/gateway/nats.Client). All
// of them pass the suite of api/apitest.
//
// A refusal is a *protocol.Error with a stable code. If the engine cannot be reached, the error is
// broker.ErrUnreachable. Refusal turns any other error into one that a caller may see.
package api
