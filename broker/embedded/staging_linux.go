package embedded

import "syscall"

// inMemory tells whether a directory is there, and in memory.
func inMemory(dir string) bool {
	const tmpfs = 0x01021994
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Type == tmpfs
}
