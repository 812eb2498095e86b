package api_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/api/apitest"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// TestOperations: every method of an interface and of a Session has a row, and every row a method.
func TestOperations(t *testing.T) {
	interfaces := []reflect.Type{reflect.TypeFor[api.Source](), reflect.TypeFor[api.Holder](), reflect.TypeFor[api.Approver](), reflect.TypeFor[api.Decider](), reflect.TypeFor[api.Sharer](), reflect.TypeFor[api.Workers]()}
	rows := map[string]bool{}
	for _, op := range api.Operations {
		if rows[op.Group+"."+op.Name] = true; op.Roles == 0 || op.Repeat == "" || op.RequestBytesMax == 0 || op.Doc == "" {
			t.Errorf("the row of %s has an empty column", op.Name)
		}
	}
	session, more := reflect.TypeFor[*api.Session](), []string{"Changes", "FirstInbox", "Follow", "FollowReturn", "Hints", "InboxCount", "Past", "PeopleFor", "Reconnected"}
	for i := range session.NumMethod() {
		if name := session.Method(i).Name; api.OperationOf(name) == nil && !slices.Contains(more, name) {
			t.Errorf("%s has no row in Operations", name)
		}
	}
	if methods := session.NumMethod() - len(more); methods != len(api.Operations) {
		t.Errorf("%d methods and %d rows", methods, len(api.Operations))
	}
	for _, of := range interfaces {
		if of.NumMethod() > 12 {
			t.Errorf("%s has %d methods, at most 12 are allowed", of.Name(), of.NumMethod())
		}
		for i := range of.NumMethod() {
			if name := of.Name() + "." + of.Method(i).Name; !rows[name] {
				t.Errorf("%s has no row in Operations", name)
			}
		}
	}
}

var update = flag.Bool("update", false, "write docs/reference/operations.md")

// TestPage keeps docs/reference/operations.md as Operations has it.
func TestPage(t *testing.T) {
	const path = "../docs/reference/operations.md"
	page := "# Operations\n\nEvery operation on handoffs and agents, with the fields of its request in JSON; those with `?` may\n" +
		"be absent. An agent asks a [NATS gateway](protocol.md#10-through-a-gateway) for an operation by its\n" +
		"name. A repeated request: `reads` changes nothing, `harmless` has no second effect, `by key` and\n" +
		"`by number` have none with the same key or number, `once` has one. Generated from `api.Operations`:\n" +
		"`go test ./api -run TestPage -update`.\n\n" +
		"| operation | role | repeated | request | effect |\n|---|---|---|---|---|\n"
	for _, op := range api.Operations {
		page += fmt.Sprintf("| `%s` | %v | %s | %s | %s |\n", op.Name, op.Roles, op.Repeat, strings.Join(fieldsOf(op.Request), " "), op.Doc)
	}
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != page {
		t.Errorf("%s is not as Operations has it (%v): write it with -update", path, err)
	}
}

// fieldsOf lists the fields of a request in JSON.
func fieldsOf(request reflect.Type) (fields []string) {
	for i := range request.NumField() {
		field := request.Field(i)
		if field.Anonymous {
			fields = append(fields, fieldsOf(field.Type)...)
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if strings.HasPrefix(options, "omit") {
			name += "?"
		}
		fields = append(fields, "`"+name+"`")
	}
	return fields
}

// TestRequests: each operation reads its requests strictly.
func TestRequests(t *testing.T) {
	b := brokertest.Over(t, brokertest.NewMemory())
	s := api.New(b, api.Config{}).As(api.Local("human"))
	for _, op := range api.Operations {
		for body, code := range map[string]protocol.Code{
			`{"nonsense":1}`: protocol.CodeUnknownField, `[]`: protocol.CodeInvalid, `{`: protocol.CodeMalformed,
			strings.Repeat(" ", op.RequestBytesMax+1): protocol.CodeTooLarge,
		} {
			if _, err := op.Do(t.Context(), s, []byte(body)); !errors.Is(err, &protocol.Error{Code: code}) {
				t.Errorf("%s %.20s: %v, want %s", op.Name, body, err, code)
			}
		}
	}
}

func TestService(t *testing.T) {
	engines := map[string]func(*testing.T) broker.Engine{
		"memory":    func(*testing.T) broker.Engine { return brokertest.NewMemory() },
		"jetstream": jetStream,
	}
	for name, engine := range engines {
		t.Run(name, func(t *testing.T) {
			apitest.Run(t, func(t *testing.T) apitest.Fixture {
				b := brokertest.Over(t, engine(t))
				s := api.New(b, api.Config{KeyRequired: true, Index: indexOf(t, b)})
				return apitest.Fixture{
					Broker:  b,
					Source:  func(_ *testing.T, agent string) api.Source { return s.As(api.Agent(agent)) },
					Holder:  func(_ *testing.T, agent string) api.Holder { return s.As(api.Agent(agent)) },
					Workers: func(_ *testing.T, agent string) api.Workers { return s.As(api.Agent(agent)) },
					All:     func(_ *testing.T, caller api.Caller) *api.Session { return s.As(caller) },
				}
			})
		})
	}
}

// indexOf keeps an index of a broker until the test ends.
func indexOf(t *testing.T, b *broker.Broker) *index.Index {
	ix, err := index.Open(filepath.Join(t.TempDir(), "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = ix.Run(ctx, b)
	}()
	t.Cleanup(func() { cancel(); <-ended; _ = ix.Close() })
	return ix
}

func jetStream(t *testing.T) broker.Engine {
	_, engine := testworld.Engine(t)
	return engine
}

// TestClaimKey: a claim with a key is repeated by another process, and is one claim.
func TestClaimKey(t *testing.T) {
	b := brokertest.Over(t, jetStream(t))
	brokertest.Register(t, b, "lead", "coder")
	ix := indexOf(t, b)
	session := func() *api.Session { return api.New(b, api.Config{Index: ix}).As(api.Agent("coder")) }
	source := api.New(b, api.Config{}).As(api.Agent("lead"))
	for _, task := range []string{"one", "two"} {
		if _, err := source.Submit(t.Context(), packageFor("coder", task)); err != nil {
			t.Fatal(err)
		}
	}
	request := api.Claim{Agent: "coder", Key: "0123456789abcdef", Lease: time.Minute, Wait: time.Minute, AckWithin: time.Minute}
	var held [3]api.Held
	for i, key := range []string{request.Key, request.Key, "fedcba9876543210"} {
		request.Key = key
		var err error
		if held[i], err = session().Claim(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if held[0].Lease != held[1].Lease || held[0].State.Ticket == held[2].State.Ticket {
		t.Errorf("%s, again %s; with another key %s", held[0].Lease, held[1].Lease, held[2].Lease)
	}
	request.Key = "short"
	var refused *protocol.Error
	if _, err := session().Claim(t.Context(), request); !errors.As(err, &refused) || refused.Field != "key" {
		t.Errorf("a short key: %v", err)
	}
}

// TestFirstInbox: a view of a long inbox reads the heads of a part of it.
func TestFirstInbox(t *testing.T) {
	b := brokertest.Over(t, jetStream(t))
	brokertest.Register(t, b, "lead", "coder")
	s := api.New(b, api.Config{Index: indexOf(t, b)})
	const all, most = 60, 5
	first := ""
	for i := range all {
		state, err := s.As(api.Agent("lead")).Submit(t.Context(), packageFor("coder", fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		first = cmp.Or(first, state.Ticket)
	}
	coder := s.As(api.Agent("coder"))
	some, err := coder.FirstInbox(t.Context(), "", most)
	if err != nil || len(some) < most || len(some) == all || some[0].State.Ticket != first {
		t.Errorf("%d entries, %v", len(some), err)
	}
	if whole, err := coder.Inbox(t.Context(), ""); err != nil || len(whole) != all {
		t.Errorf("%d entries, %v", len(whole), err)
	}
	if people, err := coder.InboxCount(t.Context(), "coder", false); err != nil || people.Handoffs != all || people.More {
		t.Errorf("%+v, %v", people, err)
	}
}
