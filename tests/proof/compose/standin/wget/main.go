// Command wget stands in for that of the official NATS image where no image can be
// pulled: it knows what the health check of docker-compose.yml uses of it, and nothing
// else. wget -q -O FILE URL, within 10 s; exit code 8 where the server answers with an
// error, 4 where it does not answer.
package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	_ = flag.Bool("q", false, "say nothing")
	file := flag.String("O", "", "where the answer goes")
	flag.Parse()
	os.Exit(get(flag.Arg(0), *file))
}

func get(url, file string) int {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= 400 {
		return 8
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	defer func() { _ = out.Close() }()
	if _, err := io.Copy(out, answer.Body); err != nil {
		return 4
	}
	return 0
}
