package embedded

import "syscall"

// isTmpfs reports whether a directory exists and is in memory.
func isTmpfs(dir string) bool {
	const tmpfs = 0x01021994
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Type == tmpfs
}
