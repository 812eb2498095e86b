package cli

import (
	"context"
	"io"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/audit"
	"github.com/agenthandoff/handoff/protocol"
)

// terminalJSON keeps what a terminal may act upon from it. Each Write is a line.
type terminalJSON struct{ to io.Writer }

func (t terminalJSON) Write(line []byte) (int, error) {
	if _, err := t.to.Write(escapeJSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// exportOne writes a handoff, if it has a record that is meant.
func exportOne(ctx context.Context, reader *audit.Reader, filter *auditFilter, ticket string, x *audit.Export) (wrote int, err error) {
	type appended struct {
		entry   broker.Entry
		records []protocol.AuditRecord
	}
	var all []appended
	meant := false
	err = reader.Appends(ctx, ticket, func(e broker.Entry, records []protocol.AuditRecord) error {
		all = append(all, appended{e, records})
		meant = meant || slices.ContainsFunc(records, filter.keeps)
		return nil
	})
	if err != nil || !meant {
		return 0, err
	}
	for _, of := range all {
		if err := x.Write(of.entry, of.records); err != nil {
			return 0, err
		}
	}
	return 1, nil
}
