// Package telemetry shows what the other rooms do to those who watch over them:
// figures for Prometheus, spans for OpenTelemetry. It learns of appends as the
// broker's Observer and asks for the rest when it is asked; nothing that it does
// can fail or slow down a handoff by more than the few microseconds it counts in.
//
// It is the only room that knows either library. Names and labels of figures are
// stable, and a label's values are bounded: agents come from the directory, and
// everything else from words that are fixed in the code.
package telemetry
