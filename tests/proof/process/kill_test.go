//go:build proof

package process

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"syscall"
	"testing"
)

// killAt makes a way to an engine that kills a process as soon as its connection has carried text
// there. The process is the one that kill gets, which connects through it.
func killAt(t *testing.T, engine, text string) (through string, kill chan<- *startedProcess) {
	t.Helper()
	at, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	process := make(chan *startedProcess, 1)
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() {
				forwardUntil(from, at.Host, []byte(text), func() {
					p := <-process
					p.Signal(syscall.SIGKILL)
					process <- p
				})
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		select { // a connection that waits for its process waits no more
		case p := <-process:
			p.Kill()
			process <- p
		default:
			close(process)
		}
		forwarding.Wait()
	})
	return "nats://" + listener.Addr().String(), process
}

// forwardUntil forwards a connection to an address, and calls found when text was sent there.
func forwardUntil(from net.Conn, address string, text []byte, found func()) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	var sent []byte // what text may begin in
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
			if sent = append(sent, buf[:n]...); bytes.Contains(sent, text) {
				found()
				sent = nil
			}
			sent = bytes.Clone(sent[max(0, len(sent)-len(text)):])
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	<-back
}
