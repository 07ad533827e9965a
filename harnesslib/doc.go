// Package harnesslib is the library that a harness imports to drive sandboxes.
//
//	hub, err := harnesslib.Connect(ctx, harnesslib.Config{URL: "nats://…", Credentials: "harness.creds"})
//	sb, err := hub.Sandbox("box1")
//	out, err := sb.Command("go", "test", "./...").CombinedOutput(ctx)
//	b, err := sb.ReadFile(ctx, "go.mod")
//
// # Files
//
// File operations take one request each, and are atomic where they change something: ReadFile, WriteFile, Edit, Entries
// and their siblings, Batch for many at once, FS for io/fs, Upload and Download for large files, CopyIn and CopyOut for
// trees, Watch for what happens.
//
// # Leases
//
//	lease, err := hub.Acquire(ctx, harnesslib.AcquireOptions{Selector: harnesslib.Selector{Labels: map[string]string{"team": "alpha"}}})
//	defer lease.Release(ctx)
//	out, err := lease.Sandbox().Command("make", "test").CombinedOutput(ctx)
//
// A lease is a right to one slot of a sandbox. It is renewed until it is released; when it ends otherwise, Lost is closed
// and all that runs under it fails with its Cause.
//
// # Errors
//
// A command that ran and failed is an *[ExitError]. Everything else means that the fabric failed: [ErrUnknownSandbox]
// and [ErrUnreachable] say that nothing ran; [ErrLost] says that nobody can tell whether it did. File operations return
// *fs.PathError, for which errors.Is knows fs.ErrNotExist and its siblings.
//
// All types may be used by several goroutines, except [Cmd], which is used once, by one.
package harnesslib
