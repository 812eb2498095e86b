// Package schema holds the JSON Schemas of the wire (draft 2020-12), for programs in
// other languages. It also checks results against the schema that a package asks for.
//
// The schemas say what one document alone must look like. They are written by
// hand; a test compares them with the Go types field by field, in both
// directions. The product itself reads with package protocol, whose messages
// are made for people; the schemas never decide what is accepted.
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

// Package is the JSON Schema of a protocol.Package. As with the others, the
// caller owns the bytes.
func Package() []byte { return bytes.Clone(packageSchema) }

// Result is the JSON Schema of a protocol.Result.
func Result() []byte { return bytes.Clone(resultSchema) }

// Ack is the JSON Schema of a protocol.Ack.
func Ack() []byte { return bytes.Clone(ackSchema) }

// Answer is the JSON Schema of a protocol.Answer.
func Answer() []byte { return bytes.Clone(answerSchema) }

// Profile is the JSON Schema of a protocol.Profile.
func Profile() []byte { return bytes.Clone(profileSchema) }
