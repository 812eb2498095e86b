package cli

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// portTaken says why dev cannot listen on a port of this machine, in one sentence.
func portTaken(port int) error {
	const free = "--port 0"
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", address)
	if err == nil {
		l.Close()
		return fmt.Errorf("port %d was in use a moment ago; try again, or let %s pick a free one", port, free)
	}
	return cannotListen(address, err, free)
}

// cannotListen says in one sentence why a process cannot listen on an address. free is a flag
// that lets it pick a free port.
func cannotListen(address string, err error, free string) error {
	host, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text) // 0, where it is none: then its holder is not known
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is in use by %s: stop that, or let %s pick a free one", port, portHolder(port, address), free)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this machine; let %s pick a free port", host, free)
	case errors.As(err, &errno):
		err = errno
	}
	return fmt.Errorf("port %d: %w; let %s pick a free one", port, err, free)
}

// portHolder names the program that listens on a port: its process where this user may see
// it, else what it answers as.
func portHolder(port int, address string) string {
	if pid, command := listener(port); pid != "" {
		return fmt.Sprintf("process %s (%s)", pid, command)
	}
	if isNATS(address) {
		return "a NATS server"
	}
	return "another program"
}

// greetTimeout is how long a server has for its first line.
const greetTimeout = time.Second

// isNATS tells whether a NATS server listens there: it greets each client.
func isNATS(address string) bool {
	conn, err := net.DialTimeout("tcp", address, greetTimeout)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(greetTimeout))
	line, _ := bufio.NewReader(conn).ReadString(' ')
	return line == "INFO "
}

// listener finds the process that listens on a port, and its command line. It knows the
// processes of this user on Linux alone.
func listener(port int) (pid, command string) {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		body, _ := os.ReadFile(table) // absent elsewhere
		for _, line := range strings.Split(string(body), "\n") {
			const local, state, inode, listening = 1, 3, 9, "0A"
			cells := strings.Fields(line)
			if len(cells) > inode && cells[state] == listening && strings.HasSuffix(cells[local], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+cells[inode]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return "", ""
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && sockets[target] {
			process := filepath.Dir(filepath.Dir(file))
			words, _ := os.ReadFile(filepath.Join(process, "cmdline"))
			return filepath.Base(process), strings.TrimSpace(strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return "", ""
}
