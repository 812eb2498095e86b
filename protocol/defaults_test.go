package protocol_test

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// docsOf collects the help of the fields below a type that are flags, by flag.
func docsOf(docs map[string]string, of reflect.Type, policy map[string]any) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() {
		return
	}
	for i := range of.NumField() {
		field := of.Field(i)
		if flag, doc := field.Tag.Get("flag"), field.Tag.Get("doc"); flag != "" && doc != "" {
			docs[flag] = doc
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); of == reflect.TypeFor[protocol.PolicyOverrides]() {
				for _, f := range protocol.PolicyFields {
					if f.Name == name {
						policy[flag] = f.Default
					}
				}
			}
		}
		docsOf(docs, field.Type, policy)
	}
}

// TestDefaults: a default that the help of a flag names is the one that the program uses.
func TestDefaults(t *testing.T) {
	const ms = time.Millisecond
	standard := protocol.DefaultPolicy()
	docs, uses := map[string]string{}, map[string]any{
		"poll-patience": protocol.Profile{}.PollPatience(), "bid-window": protocol.BidWindowDefaultMS * ms, "lock-wait": protocol.LockWaitDefaultMS * ms,
		"approval-timeout": protocol.ApprovalTimeoutDefaultMS * ms, "share": int64(protocol.SharePercentDefault),
		"work-timeout": time.Duration(standard.WorkTimeoutMS) * ms, "on-return-timeout": standard.OnReturnTimeout,
	}
	docsOf(docs, reflect.TypeFor[protocol.Package](), uses)
	docsOf(docs, reflect.TypeFor[protocol.Profile](), uses)
	value, number := regexp.MustCompile(`(\w+) \(default[);]|\(default:? (\w+)|, else (\w+)\)`), regexp.MustCompile(`^\d`)
	compared := 0
	for flag, used := range uses {
		doc, named := docs[flag]
		if !named {
			t.Errorf("--%s is no field of a package or a profile", flag)
		}
		var all []string
		for _, match := range value.FindAllStringSubmatch(doc, -1) {
			all = append(all, match[1]+match[2]+match[3])
		}
		if len(all) == 0 { // it names none
			continue
		}
		last, matches := all[len(all)-1], false
		switch used := used.(type) {
		case time.Duration:
			d, err := time.ParseDuration(last)
			matches = err == nil && d == used
		case bool:
			matches = last == "accept" && !used
		case int64:
			matches = last == fmt.Sprint(used) || last == "none" && used == 0
			if d, err := time.ParseDuration(last); err == nil && number.MatchString(last) {
				matches = d == time.Duration(used)*ms
			}
		default:
			matches = last == fmt.Sprint(used)
		}
		if compared++; !matches {
			t.Errorf("the help of --%s names the default %q, and the program uses %v: %s", flag, last, used, doc)
		}
	}
	if compared < 10 {
		t.Errorf("only %d defaults were compared", compared)
	}
}
