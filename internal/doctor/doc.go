// Package doctor finds problems of an engine and its handoffs, and says how to solve them.
//
// Examine reads the facts for the checks. Judge makes findings of these facts alone: it reads no
// clock and asks no server. A doctor changes nothing.
package doctor
