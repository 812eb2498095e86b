package httpgateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	headerLease = "Handoff-Lease"
	headerKey   = "Idempotency-Key"
	// fieldLease is the field of a request that headerLease is, and fieldFilter the one whose fields are
	// parameters of their own.
	fieldLease, fieldFilter = "lease", "filter"
	paramChain              = "chain"
	// requestMin bounds requests that have a ticket and a few words, and the query.
	requestMin = 64 << 10
)

func malformed(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeMalformed, field, format, args...)
}

// requestOf makes the JSON of the request of a route, of its path, headers, query and body. chain
// reports that the caller asks for the chain of a handoff.
func requestOf(rt *route, r *http.Request, body []byte) (request []byte, chain bool, err error) {
	fields := map[string]any{}
	for _, name := range rt.inPath {
		fields[name] = r.PathValue(name)
	}
	if strings.HasPrefix(rt.path, leases) {
		if fields[fieldLease] = r.Header.Get(headerLease); fields[fieldLease] == "" {
			return nil, false, protocol.Errorf(protocol.CodeMissing, headerLease, "is missing: each report has this header, with the lease that the claim returned")
		}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, false, malformed("query", "does not parse")
	}
	if rt.chain != "" && query.Has(paramChain) {
		if chain, err = strconv.ParseBool(query.Get(paramChain)); err != nil || len(query[paramChain]) > 1 {
			return nil, false, malformed(paramChain, "is 1 or 0")
		}
		query.Del(paramChain)
	}
	if rt.body == "" {
		if err := queryFields(rt.fields, query, fields); err != nil {
			return nil, false, err
		}
	}
	for name := range query {
		return nil, false, protocol.Errorf(protocol.CodeUnknownField, protocol.CutText(name, protocol.NameBytesMax), "is no parameter of %s %s", rt.method, rt.path)
	}
	if key := r.Header.Get(headerKey); key != "" && rt.op == "SendSignal" {
		fields["id"] = key
	}
	if request, err = json.Marshal(fields); err != nil {
		return nil, false, err
	}
	request, err = withBody(rt, request, r.Header.Get(headerKey), bytes.TrimSpace(body))
	return request, chain, err
}

// withBody adds the body of a request to its other fields, and the key to the package in it.
func withBody(rt *route, request []byte, key string, body []byte) (_ []byte, err error) {
	switch {
	case rt.body == "" && len(body) > 0:
		return nil, malformed("body", "%s %s takes none", rt.method, rt.path)
	case len(body) == 0 && (rt.body == "" || rt.body == "*" || rt.body == "payload"):
		return request, nil
	case rt.body == "*":
		return joined(request, body)
	case len(body) == 0:
		return nil, malformed("body", "is empty: it is the %s", rt.body)
	}
	if key != "" && rt.op == "Submit" {
		quoted, _ := json.Marshal(map[string]string{"key": key}) // of text it does not fail
		if body, err = joined(quoted, body); err != nil {
			return nil, err
		}
	}
	return slices.Concat(opened(request), []byte(`"`+rt.body+`":`), body, []byte("}")), nil
}

// joined adds the members of a body to those of an object. A member of both is repeated, and refused
// by the decoder as such.
func joined(object, body []byte) ([]byte, error) {
	if body[0] != '{' {
		return nil, malformed("body", "is no JSON object")
	}
	rest := bytes.TrimSpace(body[1:])
	if bytes.HasPrefix(rest, []byte("}")) {
		return slices.Concat(object[:len(object)-1], rest), nil
	}
	return slices.Concat(opened(object), rest), nil
}

// opened is an object without its end, for more members.
func opened(object []byte) []byte {
	if string(object) == "{}" {
		return []byte("{")
	}
	return append(object[:len(object)-1], ',')
}

// field is a field of a request, with its name in JSON.
type field struct {
	name   string
	of     reflect.Type
	within []field // of a filter
}

// fieldsOf returns the fields of a type of requests.
func fieldsOf(t reflect.Type) (fields []field) {
	for _, f := range reflect.VisibleFields(t) {
		one := field{of: f.Type}
		if one.name, _, _ = strings.Cut(f.Tag.Get("json"), ","); one.name == "" {
			continue
		}
		if one.name == fieldFilter {
			one.within = fieldsOf(f.Type)
		}
		fields = append(fields, one)
	}
	return fields
}

// queryFields moves parameters of a query into the fields of a request. Those of its filter are
// parameters, too.
func queryFields(of []field, query url.Values, into map[string]any) error {
	for _, f := range of {
		values, given := query[f.name]
		switch {
		case f.within != nil:
			filter := map[string]any{}
			if err := queryFields(f.within, query, filter); err != nil {
				return err
			}
			into[f.name] = filter
			continue
		case !given || into[f.name] != nil:
			continue
		}
		query.Del(f.name)
		list := f.of.Kind() == reflect.Slice
		if !list && len(values) > 1 {
			return malformed(f.name, "is given %d times; once is enough", len(values))
		}
		parsed := make([]any, len(values))
		for i, text := range values {
			var must string
			if parsed[i], must = parse(f.of, text); must != "" {
				return malformed(f.name, "is %q, must be %s", protocol.CutText(text, 64), must)
			}
		}
		if into[f.name] = any(parsed); !list {
			into[f.name] = parsed[0]
		}
	}
	return nil
}

// parse reads one value of a parameter for a field of a type, or returns how it must be.
func parse(t reflect.Type, text string) (value any, must string) {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var err error
	switch t.Kind() {
	case reflect.Bool:
		value, err = strconv.ParseBool(text)
		must = "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		value, err = strconv.ParseInt(text, 10, 64)
		must = "a whole number"
	case reflect.Struct:
		value, err = time.Parse(time.RFC3339Nano, text)
		must = "an instant, as 2026-01-31T17:00:00Z"
	default:
		value = text
	}
	if err == nil {
		must = ""
	}
	return value, must
}

// body reads the body of a request, of at most bytesMax bytes. One that is larger than
// largeBody waits for no other: it takes a place among those, or is refused.
func (g *Gateway) body(w http.ResponseWriter, r *http.Request, caller string, bytesMax int) ([]byte, error) {
	switch {
	case r.Header.Get("Content-Encoding") != "":
		return nil, protocol.Errorf(codeMedia, "Content-Encoding", "is not supported: send the body as it is")
	case r.ContentLength == 0:
		return nil, nil
	case r.ContentLength > int64(bytesMax):
		return nil, protocol.Errorf(protocol.CodeTooLarge, "body", "%s", protocol.OverSize(int(r.ContentLength), bytesMax))
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, protocol.Errorf(codeMedia, "Content-Type", "must be application/json")
	}
	limited := http.MaxBytesReader(w, r.Body, int64(bytesMax))
	body, err := io.ReadAll(io.LimitReader(limited, largeBody+1))
	if err == nil && len(body) > largeBody {
		release, busy := g.large.take(caller)
		if busy != nil {
			return nil, busy
		}
		defer release()
		var rest []byte
		rest, err = io.ReadAll(limited)
		body = append(body, rest...)
	}
	switch over := (*http.MaxBytesError)(nil); {
	case errors.As(err, &over):
		return nil, protocol.Errorf(protocol.CodeTooLarge, "body", "is larger than %d bytes", bytesMax)
	case err != nil:
		return nil, malformed("body", "ended before it was complete")
	}
	return body, nil
}
