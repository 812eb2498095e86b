package worker

import _ "embed"

//go:embed example.sh
var exampleScript string

// ExampleScript returns a small commented POSIX shell script that is a worker's
// program: a place to start from.
func ExampleScript() string { return exampleScript }
