// Package schema holds the JSON Schemas of the wire (draft 2020-12), for programs in other
// languages. It also checks results against the output schema of a package.
//
// The schemas describe single documents. They are written by hand; a test compares them with the Go
// types field by field, in both directions. The product itself reads with package protocol, whose
// messages are made for people; the schemas never decide which documents are accepted.
package schema

import (
	"bytes"
	_ "embed"
)

//go:embed package.json
var packageSchema []byte

//go:embed result.json
var resultSchema []byte

//go:embed ack.json
var ackSchema []byte

//go:embed answer.json
var answerSchema []byte

//go:embed profile.json
var profileSchema []byte

// Package returns the JSON Schema of a protocol.Package. As with the others, the caller owns the
// bytes.
func Package() []byte { return bytes.Clone(packageSchema) }

// Result returns the JSON Schema of a protocol.Result.
func Result() []byte { return bytes.Clone(resultSchema) }

// Ack returns the JSON Schema of a protocol.Ack.
func Ack() []byte { return bytes.Clone(ackSchema) }

// Answer returns the JSON Schema of a protocol.Answer.
func Answer() []byte { return bytes.Clone(answerSchema) }

// Profile returns the JSON Schema of a protocol.Profile.
func Profile() []byte { return bytes.Clone(profileSchema) }
