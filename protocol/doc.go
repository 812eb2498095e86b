// Package protocol is the wire of Handoff: packages (Package), answers of a target (Ack), results
// (Result), records (Event, State, Record) and the errors that a program may branch on (Error).
//
// It owns the names, the limits and the validation of everything that is read from outside. It does
// no I/O and reads no clock. All JSON is snake_case, durations are whole milliseconds in fields
// ending in _ms, instants are RFC 3339 in UTC.
//
// The rules come from the five documents that the product implements; docs/reference/fields.md
// lists every field of each with its name here.
package protocol
