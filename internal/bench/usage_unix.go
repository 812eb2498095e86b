//go:build unix

package bench

import (
	"runtime"
	"syscall"
	"time"
)

// usage is the consumption of this process and of its children that have ended.
type usage struct {
	cpu       time.Duration
	peakBytes int64 // of resident memory
}

func readUsage() usage {
	var u usage
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			continue
		}
		u.cpu += time.Duration(r.Utime.Nano() + r.Stime.Nano())
		if who == syscall.RUSAGE_SELF {
			u.peakBytes = int64(r.Maxrss)
			if runtime.GOOS != "darwin" { // darwin counts bytes, the others KiB
				u.peakBytes <<= 10
			}
		}
	}
	return u
}
