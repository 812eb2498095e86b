// Package doctor says what is wrong with an engine and its handoffs, and what to do about it.
//
// Examine reads what the checks need. Judge makes findings of that alone: it reads no clock
// and asks no server. A doctor changes nothing.
package doctor
