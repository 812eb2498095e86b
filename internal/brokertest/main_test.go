package brokertest

import (
	"flag"
	"os"
	"testing"
)

// Nearly all that the cases do is wait, so that more of them run at a time
// than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil {
		_ = f.Value.Set("6")
	}
	os.Exit(m.Run())
}
