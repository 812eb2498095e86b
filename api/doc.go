// Package api has every operation on handoffs, with its rules, for all ways in.
//
// The operations are methods of small interfaces: Source submits handoffs and follows
// them, Holder claims them and reports by a lease, Reader reads what is known about them,
// Operator intervenes, and Directory has the agents. Operations lists them all, with the
// role that each needs.
//
// Service is the implementation. It works on a broker.Broker, and Service.As binds it
// to a Caller. Roles and visibility are checked there, and nowhere else: a gateway
// authenticates its caller, decodes, calls one operation, and encodes. Other
// implementations forward to a Service (gateway/nats.Client). All of them pass
// the suite of api/apitest.
//
// A refusal is a *protocol.Error with a stable code. An engine out of reach is
// broker.ErrUnreachable. Refusal turns any other error into what a caller may know.
package api
