//go:build !linux

package embedded

func inMemory(string) bool { return false }
