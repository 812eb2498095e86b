//go:build !linux

package cli

func asInit([]string) (int, bool) { return 0, false }
