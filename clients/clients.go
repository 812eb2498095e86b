// Package clients has the clients of other languages: one file each, without dependencies, over HTTP.
package clients

import _ "embed"

// Python is handoff.py, for Python 3.10 and later.
//
//go:embed python/handoff.py
var Python string

// JavaScript is handoff.mjs, for Node 18 and later, Deno and Bun.
//
//go:embed js/handoff.mjs
var JavaScript string
