package cli

import (
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// declareWorkspace declares the flags of what a handoff shares with others.
func (f *packageFlags) declareWorkspace(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	f.text("workspace", "`NAME` of the workflow that it has a place in (default: that of --workflow, where it was opened with handoff workflow open)", func(p *pkg) *string { return &p.Workspace })
	own := func(p *pkg) *protocol.Locks { return orNew(&p.Locks) }
	lock := func(name string, mode protocol.LockMode, words string) {
		paths := fs.StringArray(name, nil, words)
		f.onGiven(name, func(p *pkg) {
			for _, path := range *paths {
				own(p).Paths = append(own(p).Paths, protocol.LockPath{Path: path, Mode: mode})
			}
		})
	}
	lock("lock", protocol.LockExclusive, "`PATH` that it has for itself from before its offer to its end; with a slash at the end all that is below (repeatable)")
	lock("lock-shared", protocol.LockShared, "`PATH` that it shares with others that read, as long (repeatable)")
	f.millis("lock-wait", "it waits for its locks for so long (default 5m; 0 is not at all)", func(p *pkg) *int64 { own(p).WaitMS = new(int64); return own(p).WaitMS })
}
