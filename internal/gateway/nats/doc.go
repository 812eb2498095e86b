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
// A Gateway decides nothing and does nothing twice. For tickets it calls package api on
// behalf of the agent; for offers and claims it runs broker.Offer and broker.Claim. It
// has no state that may not be lost: an offer that was pulled through it and not accepted
// comes again, and an accepted one is reported through any other gateway, by its lease.
// So any number of gateways share the work.
//
// Client is the other end. It implements api.Source and api.Holder, and worker.Transport for a
// worker (worker.NewOver).
package natsgateway
