// Package lifecycle is the pure core of Handoff: what a handoff is after an
// event (Apply), what shall happen next (Decide), when to reconcile again (Wake) and
// what must stand outside (Duties). It decides alone: workers, the supervisor
// and the command line append what it says.
//
// It reads no clock, no chance and no network. Time comes in with events and
// as the argument now; the spread of back-off is a hash of ticket and attempt,
// so that a replay gives the same instants. Apply alone is replayed, and is the
// oracle of the tests. Two observers may decide differently; the ledger's
// compare-and-set settles it.
package lifecycle
