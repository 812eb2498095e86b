// Package index is the query side: a SQLite projection of the ledger for queries other than by
// ticket. One process keeps one file. The file may be deleted at any time, since the index
// rebuilds it from the ledger, and nothing else depends on it.
//
// Guarantees: an answer names the sequence of the ledger up to which it is right (Position), has
// all entries up to there and none beyond, and is marked incomplete if appends that were
// acknowledged before the question are missing. The index never answers from a file that is
// damaged, deleted, truncated, of an older version or of another ledger: it rebuilds the file. It
// refuses a file of a newer version with errNewer and leaves it unchanged.
package index
