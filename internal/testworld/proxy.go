package testworld

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards connections from a port of its own to an address, until it is cut.
type proxy struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// newProxy makes a proxy to an address on loopback.
func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &proxy{listener: listener, to: to, conns: map[net.Conn]bool{}}
	l.wg.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.setCut(true)
		l.wg.Wait()
	})
	return l
}

func (l *proxy) address() string { return l.listener.Addr().String() }

func (l *proxy) accept() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.forward(from) })
	}
}

func (l *proxy) forward(from net.Conn) {
	defer func() { _ = from.Close() }()
	if !l.add(from) {
		return
	}
	defer l.remove(from)
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	if !l.add(to) {
		return
	}
	defer l.remove(to)
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	_, _ = io.Copy(to, from)
	_ = to.Close()
	<-back
}

func (l *proxy) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.conns[c] = true
	}
	return !l.cut
}

func (l *proxy) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// setCut cuts the proxy, or restores it.
func (l *proxy) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for c := range l.conns {
			_ = c.Close()
		}
	}
}
