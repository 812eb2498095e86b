package httpgateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// contract is the OpenAPI document as another library reads it.
var contract = sync.OnceValues(func() (routers.Router, error) {
	text, err := OpenAPI("")
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	return legacy.NewRouter(doc)
})

// checked is a RoundTripper that compares each request that is answered, and each answer, with the
// document.
type checked struct{ t testing.TB }

func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		sent, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	router, err := contract()
	if err != nil {
		c.t.Fatal(err)
	}
	asked := r.Clone(r.Context())
	asked.URL.Scheme, asked.URL.Host, asked.Host = "", "", ""
	route, params, err := router.FindRoute(asked)
	if err != nil { // no route: the answer is a problem, which the test reads
		return response, nil
	}
	asked.Body = io.NopCloser(bytes.NewReader(sent))
	options := &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	in := &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route, Options: options}
	if response.StatusCode < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			c.t.Errorf("%s %s %.300s: %v", r.Method, r.URL.Path, sent, err)
		}
	}
	if response.Header.Get("Content-Type") == "text/event-stream" {
		return response, nil
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: response.StatusCode, Header: response.Header, Options: options}
	out.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		c.t.Errorf("%s %s: %d %.2000s: %v", r.Method, r.URL.Path, response.StatusCode, body, err)
	}
	return response, nil
}

// TestOpenAPI: another library accepts the document.
func TestOpenAPI(t *testing.T) {
	if _, err := contract(); err != nil {
		t.Fatal(err)
	}
}
