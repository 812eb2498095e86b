package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// bound has a field of each kind that a flag may set.
type bound struct {
	Text   string           `json:"text" flag:"text,t" doc:"a {WORD} of it"`
	Yes    bool             `json:"yes" flag:"yes" doc:"yes"`
	Maybe  *bool            `json:"maybe" flag:"maybe" doc:"perhaps"`
	N      int              `json:"n" flag:"n" doc:"{N} of them"`
	Share  *float64         `json:"share" flag:"share" doc:"a part"`
	Wait   time.Duration    `json:"wait" flag:"wait" doc:"so long"`
	TimeMS *int64           `json:"time_ms" flag:"time" doc:"so long"`
	Micros int64            `json:"micros" flag:"cost" doc:"so much"`
	List   []string         `json:"list" flag:"list" doc:"of these"`
	Phases []protocol.Phase `json:"phases" flag:"phase,,commas" doc:"{}"`
	Sort   ask.Sort         `json:"sort" flag:"sort" doc:"in this {ORDER}: {}"`
	Inner  struct {
		Price *protocol.Price `json:"price"`
		Deep  *struct {
			ID string `json:"id" flag:"id" doc:"the {ID}"`
		} `json:"deep" flag:""`
	} `json:"inner" flag:""`
}

func TestBind(t *testing.T) {
	v := bound{N: 3, Sort: ask.SortNewest}
	fs := newFlagPart()
	b := bind(fs, &v)
	if err := fs.Parse(strings.Fields("-t x --yes --maybe=false --n 4 --share 0.5 --wait 1d --time 2s --cost 0.03 --list a,b --list c --phase working,closed --phase pending --id i")); err != nil {
		t.Fatal(err)
	}
	given := bound{Text: "old", List: []string{"gone"}, Sort: ask.SortOldest}
	b.over(&given)
	body, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"text":"x","yes":true,"maybe":false,"n":4,"share":0.5,"wait":86400000000000,"time_ms":2000,"micros":30000,"list":["a,b","c"],"phases":["working","closed","pending"],"sort":"oldest","inner":{"price":null,"deep":{"id":"i"}}}`
	if string(body) != want {
		t.Errorf("the flags give\n%s, want\n%s", body, want)
	}
	if usage := fs.FlagUsages(); !strings.Contains(usage, "-t, --text WORD") || !strings.Contains(usage, "--n N ") || !strings.Contains(usage, "(default 3)") ||
		!strings.Contains(usage, `in this ORDER: newest, oldest, updated (default "newest")`) {
		t.Errorf("the help is\n%s", usage)
	}
	for _, wrong := range []string{"--wait -1s", "--n x", "--cost -1", "--time soon"} {
		if err := fs.Parse(strings.Fields(wrong)); err == nil {
			t.Errorf("%s was not refused", wrong)
		}
	}
	if err := fs.Parse([]string{"--text", "\xff"}); err != nil || b.checkTexts() == nil {
		t.Errorf("invalid text was not refused: %v", err)
	}
}

func TestBoundListIsReplaced(t *testing.T) {
	for args, want := range map[string]int{"--hands-to=a --hands-to=b": 2, "--hands-to=": 0, "": 1} {
		v := struct {
			To []string `flag:"hands-to" doc:"them"`
		}{[]string{"before"}}
		fs := newFlagPart()
		bind(fs, &v)
		if err := fs.Parse(strings.Fields(args)); err != nil || len(v.To) != want {
			t.Errorf("%q gives %q, %v", args, v.To, err)
		}
	}
}
