// Package service is how programs that are not trusted take part in handoffs.
//
// Whoever is inside the engine's account can forge entries of the ledger,
// acknowledgements and replies. So such a program stays outside of it, and asks a
// Door: a service on the subjects handoff.v1.AGENT.VERB, which the account exports.
// The rules of the server let a user publish to handoff.v1.AGENT.> of its own agent
// alone, so that the subject says who asks. The door believes nothing else that a
// request says of its sender: sources, holders and leases are this agent's, or the
// request is refused and nothing was changed.
//
// A Door decides nothing and does nothing twice: it runs broker.Offer and
// broker.Claim for whoever asks. It has no state that may not be lost. What was
// pulled through it and not accepted comes again, and what was accepted is reported
// through any other door, by its lease. So any number of doors share the work.
//
// Client is the other end, which a worker serves through (worker.NewOver).
package service
