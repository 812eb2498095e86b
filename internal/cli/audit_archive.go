package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker/audit"
)

// Sizes that a file of an archive may have.
const (
	archiveFileMiBMax     = 16 << 10
	archiveFileMiBDefault = audit.FileBytesDefault >> 20
)

// archiveView is where an archive stands, for programs.
type archiveView struct {
	Dir  string `json:"dir"`
	Seq  uint64 `json:"seq"`  // of the last entry in it
	Last uint64 `json:"last"` // of the ledger, as far as is known
}

func newAuditArchive(a *app) *cobra.Command {
	var (
		once bool
		from uint64
		mib  int
	)
	cmd := &cobra.Command{
		Use:   "archive DIR",
		Short: "Continuously archive the ledger to files",
		Long: `Archive writes everything the ledger has, and then everything it gets, into files in
DIR: one a day (UTC), or when one gets large. They are like those of "handoff audit export",
and "handoff audit verify DIR" checks them. It runs until Ctrl-C. What is in the files is on
the disk; killed at any moment, it goes on where they end. One process at a time writes
into a directory, and a directory belongs to one ledger.

The ledger drops an entry after 190 days. Nothing waits for the archive: see that it runs.

Exit codes: 0 ended with Ctrl-C, or with --once when it had everything; 1 it cannot go on:
another ledger, something dropped or missing, no room on the disk; 6 no engine.`,
		Example: `  handoff audit archive /srv/handoff-audit
  handoff audit archive /srv/handoff-audit --once     # from a timer, every day
  handoff audit archive ./from-now --from 120000`,
		Args: takes("a DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if mib < 1 || mib > archiveFileMiBMax {
				return usagef("--file-mib %d: give 1 to %d", mib, archiveFileMiBMax)
			}
			return a.auditArchive(cmd.Context(), args[0], int64(mib)<<20, audit.FollowConfig{Once: once, From: from})
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&once, "once", false, "end when it has what the ledger has now")
	fs.Uint64Var(&from, "from", 0, "begin a new archive with this `ENTRY` (default: the oldest)")
	fs.IntVar(&mib, "file-mib", archiveFileMiBDefault, "begin a new file when one has so many `MIB`")
	return cmd
}

func (a *app) auditArchive(ctx context.Context, dir string, fileBytes int64, cfg audit.FollowConfig) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	archive, err := audit.OpenArchive(a.path(dir), fileBytes)
	if err != nil {
		return err
	}
	if n := archive.Truncated(); n > 0 {
		a.notef("handoff: took away %d bytes at the end that were not whole\n", n)
	}
	if cfg.From > 0 && archive.Position() > 0 {
		_ = archive.Close()
		return usagef("--from %d: %s goes on behind entry %d by itself", cfg.From, dir, archive.Position())
	}
	a.notef("handoff: archiving into %s, behind entry %d\n", dir, archive.Position())
	var last uint64
	cfg.Progress = func(seq, of uint64) {
		last = of
		if of > seq || cfg.Once {
			a.notef("handoff: archived %d of %d entries\n", seq, of)
		}
	}
	cfg.Unreachable = func(err error) { a.notef("handoff: %s; asking again\n", err) }
	err = archive.Follow(ctx, b, cfg)
	end := archiveView{Dir: dir, Seq: archive.Position(), Last: max(last, archive.Position())}
	if err = errors.Join(err, archive.Close()); err != nil {
		return fmt.Errorf("the archive in %s ends at entry %d: %w", dir, end.Seq, err)
	}
	return a.line(end, "%s ends at entry %d\n", dir, end.Seq)
}
