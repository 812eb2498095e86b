// Package telemetry exports metrics to Prometheus and spans to OpenTelemetry. It observes
// appends as a broker.Observer, and reads everything else when Prometheus scrapes it. An
// append never fails because of it and waits for it a few microseconds at most.
//
// It is the only package that imports either library. Names and labels of metrics are
// stable, and a label's values are bounded: agents come from the directory, all other
// values are constants.
package telemetry
