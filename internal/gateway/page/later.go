package page

import (
	"net/url"

	"github.com/agenthandoff/handoff/protocol"
)

// The views that follow.

func later() (any, error) {
	return nil, protocol.Errorf(protocol.CodeNotFound, "path", "is no page")
}

func (p *Page) board(*request) (any, error) { return later() }

func (p *Page) agents(*request) (any, error) { return later() }

func (p *Page) agent(*request) (any, error) { return later() }

const severalMax = 0

var severalActs []struct{ Op, done string }

func (p *Page) several(x *request, _ url.Values) {
	p.show(x, "problem", func(*request) (any, error) { return later() })
}

func linkWith(to string, _ ...string) string { return to }
