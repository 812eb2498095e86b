//go:build linux || darwin || freebsd

package embedded

import "golang.org/x/sys/unix"

// freeBytes returns the space that the file system of a directory has for this user.
func freeBytes(dir string) (free int64, known bool) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true //nolint:unconvert,gosec // the types differ by system
}
