package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// preciseTimer sleeps exactly. The runtime's own timers are up to a millisecond late in
// a process that has nothing else to do, twice the latency that is measured. A
// timer of the system's that the runtime polls is not, and keeps no processor of
// the runtime's from its work, as a sleeping thread does for up to 10 ms.
type preciseTimer struct {
	timer *os.File
	fd    int
}

// newPreciseTimer is as exact as the runtime where the system has no timer to spare.
func newPreciseTimer() preciseTimer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return preciseTimer{}
	}
	return preciseTimer{os.NewFile(uintptr(fd), "timer"), fd}
}

// sleep returns at once where the time is over.
func (p preciseTimer) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	if p.timer == nil || unix.TimerfdSettime(p.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil) != nil {
		time.Sleep(d)
		return
	}
	var fired [8]byte
	_, _ = p.timer.Read(fired[:]) // it can only come to its time
}

func (p preciseTimer) close() {
	if p.timer != nil {
		_ = p.timer.Close()
	}
}
