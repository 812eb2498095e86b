// Package schema is interim; delete this file when the real one lands.
package schema

import "encoding/json"

func CheckSchema(schema json.RawMessage) error       { return nil }
func CheckOutput(schema, body json.RawMessage) error { return nil }
func Package() []byte                                { return []byte("{}") }
