package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// preciseTimer sleeps exactly. The runtime's own timers are up to a millisecond late in an
// idle process, twice the latency that is measured. The runtime polls a timer of the system in
// time, and keeps its processors, where a sleeping thread would block one for up to 10 ms.
type preciseTimer struct {
	timer *os.File
	fd    int
}

// newPreciseTimer returns a timer that is only as exact as the runtime's if the system refuses one.
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
	_, _ = p.timer.Read(fired[:]) // blocks until the timer fires
}

func (p preciseTimer) close() {
	if p.timer != nil {
		_ = p.timer.Close()
	}
}
