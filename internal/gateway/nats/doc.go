// Package natsgateway serves untrusted programs over a restricted NATS service.
//
// A program inside of the engine's account can forge entries of the ledger,
// acknowledgements and replies. So an untrusted one stays outside, and asks a Gateway: a
// service on the subjects handoff.v1.AGENT.VERB, which the account exports. The rules of
// the server let a user publish to handoff.v1.AGENT.> of its own agent alone, so that the
// subject has the agent that asks. The gateway believes nothing else in a request about its
// sender: sources, holders and leases are this agent's, or the request is refused and
// nothing was changed.
//
// A Gateway authenticates, decodes, performs an operation of package api on behalf of the agent, and
// encodes its answer. Large bodies go in chunks, and agents have fair shares of it. It has no state
// that may not be lost: a handoff that was claimed through it is reported on through any other
// gateway, by its lease. So any number of gateways share the work.
//
// Client is the other end. It has the operations of an agent, and is the session of a worker.
package natsgateway
