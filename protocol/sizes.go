package protocol

import (
	"fmt"
	"strconv"
	"strings"
)

// Size writes a number of bytes for people: 90 bytes, 1.5 KiB, 64 MiB.
func Size(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	value, units := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + units[0]
}

// OverSize says that a size is over a limit: in bytes where the two look alike else.
func OverSize(n, most int) string {
	is, limit := Size(int64(n)), Size(int64(most))
	if is == limit {
		is, limit = fmt.Sprintf("%d bytes", n), fmt.Sprintf("%d", most)
	}
	return fmt.Sprintf("is %s, at most %s are allowed", is, limit)
}
