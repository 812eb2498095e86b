package schema

import "encoding/json"

// CheckSchema stands until the commit after this one.
func CheckSchema(raw json.RawMessage) error { return nil }

// CheckOutput stands until the commit after this one.
func CheckOutput(schema, body json.RawMessage) error { return nil }
