// Package lifecycle is the pure core of Handoff: the state after an event (Apply), the next step
// (Decide), the time of the next reconcile (Wake), and the outside effects that a state requires
// (Duties). All decisions are made here: workers, the supervisor and the command line append its
// steps.
//
// It reads no clock, no randomness and no network. Time comes in with events and as the argument
// now; the spread of back-off is a hash of ticket and attempt, so that a replay gives the same
// instants. Only Apply is replayed; it is the oracle of the tests. Two observers may decide
// differently; the ledger's compare-and-set settles it.
package lifecycle
