package cli

import "testing"

func TestFitHelp(t *testing.T) {
	const page = `Wait blocks until the handoff is closed, and prints how it ended.
Without --timeout it
waits.

  0   closed with success
  4   still open when the
      timeout passed
  {"a": 1}   one   column more than that

Examples:
  handoff wait 5f0c… --timeout 10m --until accepted
  T=$(handoff submit --key nightly -f package.json)

Flags:
      --until string   wait for this: closed or accepted
`
	const want = `Wait blocks until the handoff is
closed, and prints how it ended.
Without --timeout it waits.

  0   closed with success
  4   still open when the timeout
      passed
  {"a": 1}   one   column more than that

Examples:
  handoff wait 5f0c… --timeout 10m --until accepted
  T=$(handoff submit --key nightly -f package.json)

Flags:
      --until string   wait for this:
                       closed or accepted
`
	if got := fitHelp(page, 36); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
