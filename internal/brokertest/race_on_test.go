//go:build race

package brokertest

const raceDetector = true
