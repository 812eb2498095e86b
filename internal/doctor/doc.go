// Package doctor finds problems of an engine and its handoffs, and suggests how to solve them.
//
// Examine reads the facts for the checks. Judge derives findings from these facts alone: it reads
// no clock and makes no requests. A doctor changes nothing.
package doctor
