package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestSupervised(t *testing.T) {
	for name, c := range map[string]struct {
		env         map[string]string
		pid         int
		interactive bool
		want        bool
	}{
		"a shell":                 {nil, 4242, true, false},
		"a script":                {nil, 4242, false, false},
		"systemd":                 {map[string]string{"INVOCATION_ID": "x"}, 4242, false, true},
		"systemd with notify":     {map[string]string{"NOTIFY_SOCKET": "/run/x"}, 4242, false, true},
		"a terminal in a desktop": {map[string]string{"INVOCATION_ID": "x"}, 4242, true, false},
		"kubernetes":              {map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 4242, false, true},
		"a container":             {nil, 1, false, true},
		"docker run -it":          {nil, 1, true, false},
	} {
		if got := supervised(func(name string) string { return c.env[name] }, c.pid, c.interactive); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A command has its time to end after a signal, and none after a second one.
func TestEndOn(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(signals chan<- os.Signal, ended chan<- struct{}, ctx context.Context)
		code int // 0: it was not cut off
		took time.Duration
	}{
		"in order": {func(_ chan<- os.Signal, ended chan<- struct{}, ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Minute - 1)
			close(ended)
		}, 0, time.Minute - 1},
		"late": {func(chan<- os.Signal, chan<- struct{}, context.Context) {}, exitInterrupted, time.Minute},
		"second": {func(signals chan<- os.Signal, _ chan<- struct{}, _ context.Context) {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
		}, exitInterrupted, time.Second},
		"second, of a worker": {func(signals chan<- os.Signal, ended chan<- struct{}, _ context.Context) {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
			time.Sleep(goodbye - 1)
			close(ended)
		}, 0, time.Second + goodbye - 1},
		"second, of a worker that hangs": {func(signals chan<- os.Signal, _ chan<- struct{}, _ context.Context) {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
		}, exitInterrupted, time.Second + goodbye},
		"third, of a worker": {func(signals chan<- os.Signal, _ chan<- struct{}, _ context.Context) {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
		}, exitInterrupted, 2 * time.Second},
		"the same twice": {func(signals chan<- os.Signal, _ chan<- struct{}, _ context.Context) {
			time.Sleep(sameSignal - 1)
			signals <- syscall.SIGTERM
		}, exitInterrupted, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &app{err: io.Discard}
				a.endWithin(time.Minute)
				hurried := false
				if strings.Contains(name, "worker") {
					a.hurry.Store(func() { hurried = true })
				}
				ctx, cancel := context.WithCancel(t.Context())
				signals, ended := make(chan os.Signal, 2), make(chan struct{})
				signals <- os.Interrupt
				go c.end(signals, ended, ctx)
				began, code := time.Now(), 0
				a.endOn(signals, ended, cancel, func(c int) { code = c })
				if code != c.code || time.Since(began) != c.took || hurried != strings.Contains(name, "worker") {
					t.Errorf("ended with %d after %v, hurried %t", code, time.Since(began), hurried)
				}
			})
		})
	}
}

// A command whose server fails is told to end, and is cut off with exit code 1 when it waits for
// that server; a second signal ends it at once.
func TestEndOnFailure(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(signals chan<- os.Signal, ended chan<- struct{})
		code int // 0: it was not cut off
		took time.Duration
	}{
		"in order": {func(_ chan<- os.Signal, ended chan<- struct{}) { close(ended) }, 0, 0},
		"late":     {func(chan<- os.Signal, chan<- struct{}) {}, exitError, brokenEnd},
		"signal": {func(signals chan<- os.Signal, _ chan<- struct{}) {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
		}, exitError, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &app{err: io.Discard, broken: make(chan struct{})}
				failed := make(chan struct{})
				ctx, stop := a.untilFailed(t.Context(), failed, func() error { return errors.ErrUnsupported })
				defer stop()
				signals, ended := make(chan os.Signal, 2), make(chan struct{})
				began, code := time.Now(), 0
				close(failed)
				go func() {
					<-ctx.Done()
					c.end(signals, ended)
				}()
				a.endOn(signals, ended, func() { t.Error("the command was interrupted") }, func(c int) { code = c })
				if code != c.code || time.Since(began) != c.took {
					t.Errorf("ended with %d after %v", code, time.Since(began))
				}
			})
		})
	}
}
