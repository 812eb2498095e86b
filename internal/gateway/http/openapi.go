package httpgateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

type object = map[string]any

// document is the OpenAPI document of a gateway.
type document struct {
	paths, schemas object
	types          map[string]reflect.Type // by the names of their schemas
}

// OpenAPI returns the OpenAPI 3.1 document of all routes. It is made of the rows of api.Operations,
// and of the JSON Schemas of the protocol. base is the path that a proxy adds.
func OpenAPI(base string) ([]byte, error) {
	d := &document{object{}, object{}, map[string]reflect.Type{}}
	for name, text := range wireSchemas {
		if err := d.wire(name, text()); err != nil {
			return nil, err
		}
	}
	for _, rt := range allRoutes() {
		d.add(&rt)
	}
	done := d.responses("200", content("done", "application/json", object{}))
	d.paths["/v1/openapi.json"] = object{"get": object{"operationId": "OpenAPI", "responses": done}}
	d.paths["/healthz"] = object{"get": object{"operationId": "Health", "responses": done, "security": []any{}}}
	return protocol.Marshal(object{"openapi": "3.1.0",
		"info":    object{"title": "Handoff", "version": "1", "description": "Hand work from one agent to another, durably."},
		"servers": []any{object{"url": cmp.Or(base, "/")}}, "paths": d.paths, "security": []any{object{"bearer": []any{}}},
		"components": object{"schemas": d.schemas, "securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"}}}})
}

// wireSchemas are the schemas of free data in requests, by the names of their fields.
var wireSchemas = map[string]func() []byte{"package": schema.Package, "result": schema.Result, "ack": schema.Ack, "answer": schema.Answer, "profile": schema.Profile}

// wire adds a schema of the protocol. Its definitions become schemas of the document.
func (d *document) wire(name string, text []byte) error {
	var s object
	text = bytes.ReplaceAll(text, []byte("#/$defs/"), []byte("#/components/schemas/"+name+"_"))
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if defs, ok := s["$defs"].(object); ok {
		for def, of := range defs {
			d.schemas[name+"_"+def] = of
		}
	}
	for _, key := range []string{"$defs", "$id", "$schema"} {
		delete(s, key)
	}
	if required, ok := s["required"].([]any); ok && name == "package" { // the source is the caller
		s["required"] = slices.DeleteFunc(required, func(field any) bool { return field == "source" })
	}
	d.schemas[name] = s
	return nil
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func param(name, in string, of object) object {
	return object{"name": name, "in": in, "required": in == "path" || name == headerLease, "schema": of}
}

// content is the description of a body.
func content(words, kind string, schema object) object {
	return object{"description": words, "content": object{kind: object{"schema": schema}}}
}

// responses are those of a status, and refusals.
func (d *document) responses(status string, answer object) object {
	return object{status: answer, "default": content("refused", "application/problem+json", d.schema(reflect.TypeFor[problem]()))}
}

// add describes a route.
func (d *document) add(rt *route) {
	answer := content("messages of server-sent events", "text/event-stream", object{"type": "string"})
	if rt.stream == nil {
		answer = content("done", "application/json", d.schema(rt.out))
	}
	responses, params, taken := d.responses("200", answer), []any{}, rt.inPath
	for _, name := range rt.inPath {
		params = append(params, param(name, "path", object{"type": "string"}))
	}
	switch rt.name {
	case "Submit":
		params = append(params, param(headerKey, "header", object{"type": "string", "maxLength": protocol.KeyBytesMax}))
		responses["202"] = answer
	case "Claim":
		responses["204"] = object{"description": "nothing to claim"}
	case "Changes":
		params = append(params, param(headerLastEvent, "header", object{"type": "string"}))
	}
	if strings.HasPrefix(rt.path, leases) {
		params, taken = append(params, param(headerLease, "header", object{"type": "string"})), append(taken, fieldLease)
	}
	if rt.chain != "" {
		params = append(params, param(paramChain, "query", object{"type": "boolean"}))
	}
	about := object{"operationId": rt.name, "summary": rt.doc, "responses": responses}
	if rt.body == "" {
		params = append(params, d.query(rt.fields, taken)...)
	} else {
		request := d.object(rt.in, taken)
		fields, _ := request["required"].([]string)
		required := len(fields) > 0
		if rt.body != "*" {
			required = slices.Contains(fields, rt.body)
		}
		if request["additionalProperties"] = false; rt.body != "*" {
			request = request["properties"].(object)[rt.body].(object)
		}
		body := content("the request", "application/json", request)
		about["requestBody"], body["required"] = body, required
	}
	about["parameters"] = params
	path, _ := d.paths[rt.path].(object)
	if path == nil {
		path = object{}
		d.paths[rt.path] = path
	}
	path[strings.ToLower(rt.method)] = about
}

// query describes the parameters that are fields of a request, as queryFields reads them.
func (d *document) query(fields []field, taken []string) (params []any) {
	for _, f := range fields {
		if f.within != nil {
			params = append(params, d.query(f.within, taken)...)
		} else if !slices.Contains(taken, f.name) {
			params = append(params, param(f.name, "query", d.schema(f.of)))
		}
	}
	return params
}

var (
	marshaler = reflect.TypeFor[json.Marshaler]()
	rawJSON   = reflect.TypeFor[json.RawMessage]()
)

// schema returns the schema of a type in JSON. Structs with a name become schemas of the document.
func (d *document) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == rawJSON, t.Kind() == reflect.Interface, t.Implements(marshaler):
		return object{}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float64, reflect.Float32:
		return object{"type": "number"}
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.Struct:
		name := t.Name()
		if known := d.types[name]; name == "" {
			return d.object(t, nil)
		} else if known != nil && known != t { // of another Go package
			name = t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:] + "_" + name
		}
		if d.types[name] == nil {
			d.types[name] = t // first: types may be recursive
			d.schemas[name] = d.object(t, nil)
		}
		return ref(name)
	}
	return object{"type": "integer"}
}

// object describes the fields of a struct, but for those that are taken.
func (d *document) object(t reflect.Type, taken []string) object {
	properties, required := object{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous && name == "" || name == "-" || slices.Contains(taken, name) {
			continue
		}
		if name = cmp.Or(name, f.Name); wireSchemas[name] != nil && f.Type == rawJSON && strings.HasSuffix(t.Name(), "Request") {
			properties[name] = ref(name)
		} else if properties[name] == nil { // an outer field hides an embedded one
			properties[name] = d.schema(f.Type)
		}
		if !strings.Contains(options, "omit") && !slices.Contains(required, name) && f.Type.Kind() != reflect.Struct {
			required = append(required, name)
		}
	}
	o := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}
