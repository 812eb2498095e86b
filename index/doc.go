// Package index is the query side: a SQLite projection of the ledger that
// answers what is not asked by ticket. One process keeps one file; it may be
// deleted at any time and is made again from the ledger, and nothing else
// depends on it.
//
// Guarantees: an answer says up to which sequence of the ledger it is right
// (Position), has everything up to there and nothing beyond, and is marked
// incomplete where appends that were acknowledged before the question are
// missing. A file that is damaged, deleted, truncated, of an older version or of
// another ledger is never answered from: it is rebuilt. One of a newer version is
// refused with ErrNewer and stays as it is.
package index
