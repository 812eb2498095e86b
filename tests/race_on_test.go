//go:build race

package tests

// raceEnabled: everything takes several times as long, and the processes that
// the tests start are built with the detector too.
const raceEnabled = true
