// Package shellfiles has the file operations of a sandbox without a worker: POSIX shell, run by whatever can run
// commands there. Each operation is one command, except a write of more than 64 KiB, which is two or three.
//
// It needs cat, head, mv, rm, rmdir, mkdir, chmod, ln, readlink, wc and stat -c, as coreutils and busybox have them, and
// for Hash one of sha256sum, shasum and openssl. Names are any bytes but NUL. What a path leads to is looked at before it
// is opened, so that a FIFO or device is refused and not waited for.
//
// # Differences from native operations
//
//   - Writes are atomic for readers, and are not synced to the disk. Who is cut off in a large write may leave a file
//     named .sandbus-*.
//   - AppendFile of more than 64 KiB may be interrupted in its middle.
//   - Times are in whole seconds.
//   - Rename onto a directory removes the empty directory first.
package shellfiles
