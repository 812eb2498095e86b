//go:build !linux

package embedded

func isTmpfs(string) bool { return false }
