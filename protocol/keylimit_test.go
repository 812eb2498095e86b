package protocol_test

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestKeyLimitChecks(t *testing.T) {
	good := protocol.KeyLimit{Key: "model:$.variables.model", MaxConcurrency: 1, Rate: 60, PerMS: 60_000}
	with := func(change func(*protocol.KeyLimit)) []protocol.KeyLimit {
		l := good
		change(&l)
		return []protocol.KeyLimit{l}
	}
	for name, c := range map[string]struct {
		limits []protocol.KeyLimit
		field  string
	}{
		"a word and a path":  {[]protocol.KeyLimit{good}, ""},
		"a word":             {[]protocol.KeyLimit{{Key: "openai", MaxConcurrency: protocol.KeyConcurrencyMax}}, ""},
		"only a rate":        {[]protocol.KeyLimit{{Key: "openai", Rate: protocol.KeyRateMax, PerMS: protocol.KeyPerMaxMS}}, ""},
		"no key":             {with(func(l *protocol.KeyLimit) { l.Key = "" }), "limits_by[0].key"},
		"no word":            {with(func(l *protocol.KeyLimit) { l.Key = ":$.variables.model" }), "limits_by[0].key"},
		"no path":            {with(func(l *protocol.KeyLimit) { l.Key = "model:$." }), "limits_by[0].key"},
		"all variables":      {with(func(l *protocol.KeyLimit) { l.Key = "model:$.variables" }), "limits_by[0].key"},
		"no step":            {with(func(l *protocol.KeyLimit) { l.Key = "model:$.variables..x" }), "limits_by[0].key"},
		"a long path":        {with(func(l *protocol.KeyLimit) { l.Key = "model:$." + strings.Repeat("x", 300) }), "limits_by[0].key"},
		"no limit":           {[]protocol.KeyLimit{{Key: "openai"}}, "limits_by[0].max_concurrency"},
		"a span alone":       {[]protocol.KeyLimit{{Key: "openai", MaxConcurrency: 1, PerMS: 1000}}, "limits_by[0].rate"},
		"a rate alone":       {[]protocol.KeyLimit{{Key: "openai", Rate: 1}}, "limits_by[0].per_ms"},
		"a short span":       {with(func(l *protocol.KeyLimit) { l.PerMS = protocol.KeyPerMinMS - 1 }), "limits_by[0].per_ms"},
		"a long span":        {with(func(l *protocol.KeyLimit) { l.PerMS = protocol.KeyPerMaxMS + 1 }), "limits_by[0].per_ms"},
		"too fast":           {with(func(l *protocol.KeyLimit) { l.Rate = protocol.KeyRateMax + 1 }), "limits_by[0].rate"},
		"below zero":         {with(func(l *protocol.KeyLimit) { l.Rate = -1 }), "limits_by[0].rate"},
		"too many at a time": {with(func(l *protocol.KeyLimit) { l.MaxConcurrency = protocol.KeyConcurrencyMax + 1 }), "limits_by[0].max_concurrency"},
		"twice":              {[]protocol.KeyLimit{good, good}, "limits_by[1].key"},
		"too many":           {make([]protocol.KeyLimit, protocol.KeyLimitsMax+1), "limits_by"},
	} {
		for of, err := range map[string]error{"profile": protocol.Profile{ID: "a", LimitsBy: c.limits}.Validate(), "fleet": protocol.Fleet{LimitsBy: c.limits}.Validate()} {
			field := ""
			if e, is := err.(*protocol.Error); is {
				field = e.Field
			}
			if field != c.field {
				t.Errorf("%s, in a %s: %v", name, of, err)
			}
		}
	}
}

func TestKeyLimitsOf(t *testing.T) {
	fleet := &protocol.Fleet{LimitsBy: []protocol.KeyLimit{{Key: "model:$.variables.model", MaxConcurrency: 8}, {Key: "user:$.context.user_id", Rate: 6, PerMS: 60_000}}}
	profile := &protocol.Profile{ID: "coder", LimitsBy: []protocol.KeyLimit{{Key: "model:$.variables.model", MaxConcurrency: 2}, {Key: "gpu", MaxConcurrency: 1},
		{Key: "user:$.context.user_id", Rate: 1, PerMS: 1_000}}}
	for pkg, want := range map[string]string{
		`{"context":{"variables":{"model":"gpt-5"}}}`:                "gpu=1/0 model:gpt-5=2/0",
		`{"context":{"variables":{"model":7},"user_id":"u"}}`:        "gpu=1/0 model:7=2/0 user:u=0/6",
		`{"context":{"variables":{"model":true}}}`:                   "gpu=1/0 model:true=2/0",
		`{"context":{"variables":{"model":{}}}}`:                     "gpu=1/0",
		`{"context":{"variables":{"model":""}}}`:                     "gpu=1/0",
		`{"context":{"variables":{"model":"a\nb"}}}`:                 "gpu=1/0",
		`{"context":"text"}`:                                         "gpu=1/0",
		`{`:                                                          "gpu=1/0",
		`{"context":{"user_id":"` + strings.Repeat("u", 200) + `"}}`: "gpu=1/0",
	} {
		var got []string
		for _, l := range protocol.KeyLimitsOf(fleet, profile, []byte(pkg)) {
			got = append(got, l.Key+"="+string(rune('0'+l.MaxConcurrency))+"/"+string(rune('0'+l.Rate)))
		}
		if words := strings.Join(got, " "); words != want {
			t.Errorf("%s: %s, want %s", pkg, words, want)
		}
	}
	if limits := protocol.KeyLimitsOf(fleet, &protocol.Profile{ID: protocol.Human}, nil); limits != nil {
		t.Errorf("a person is bounded by %v", limits)
	}
	if limits := protocol.KeyLimitsOf(nil, &protocol.Profile{ID: "a"}, nil); len(limits) != 0 {
		t.Errorf("%v", limits)
	}
}

func TestDecodeKeyUse(t *testing.T) {
	ticket := protocol.NewTicket()
	for body, good := range map[string]bool{
		`{"key":"k"}`: true, `{"key":"k","waiting":[{"ticket":"` + ticket + `"}],"starts":[1,2]}`: true,
		`{}`: false, `{`: false, `{"key":"k","waiting":[{"ticket":"x"}]}`: false, `{"key":"k","places":{"x":{}}}`: false, `{"key":"k","starts":[2,1]}`: false,
		`{"key":"` + strings.Repeat("k", protocol.LimitKeyBytesMax+1) + `"}`: false, `{"key":"k","span_ms":-1}`: false,
	} {
		if _, err := protocol.DecodeKeyUse([]byte(body)); (err == nil) != good {
			t.Errorf("%s: %v", body, err)
		}
	}
}
