package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandbus/sandbus/gateway/plainrelay"
	"github.com/sandbus/sandbus/harnesslib/transport"
	"github.com/sandbus/sandbus/harnesslib/transport/relay"
)

// listensOn is the address in a file with what "sandbus gateway" has printed.
func listensOn(ts *testscript.TestScript, file string) string {
	return strings.TrimSpace(strings.TrimPrefix(ts.ReadFile(file), "gateway listens on "))
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"sandbus": main})
}

// TestScripts runs the command line as a user would: each file of testdata is a session.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			// A state directory of its own: no hub of the machine is found, none is left.
			e.Setenv("SANDBUS_STATE_DIR", filepath.Join(e.WorkDir, ".state"))
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// exits wants a command line to end with a status: exits 3 sandbus exec -- false
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				if len(args) < 2 {
					ts.Fatalf("usage: exits STATUS COMMAND...")
				}
				err := ts.Exec(args[1], args[2:]...)
				got := "exit status 0"
				if err != nil {
					got = err.Error()
				}
				if got != "exit status "+args[0] {
					ts.Fatalf("want exit status %s, got %s", args[0], got)
				}
			},
			// until waits for a command line to succeed: until sandbus ps
			"until": func(ts *testscript.TestScript, _ bool, args []string) {
				for range 300 {
					if ts.Exec(args[0], args[1:]...) == nil {
						return
					}
					time.Sleep(50 * time.Millisecond) //nolint:forbidigo // polls for another process
				}
				ts.Fatalf("%s: never succeeded", strings.Join(args, " "))
			},
			// relay runs a command through a gateway and prints what came: relay FILE TOKEN SANDBOX COMMAND
			"relay": func(ts *testscript.TestScript, _ bool, args []string) {
				t, err := relay.New(relay.Config{Addr: listensOn(ts, args[0]), Token: args[1], Sandbox: args[2]})
				ts.Check(err)
				defer func() { ts.Check(t.Close()) }()
				res, err := t.Exec(context.Background(), transport.Command{Script: args[3]})
				if err != nil {
					_, err = fmt.Fprintln(ts.Stdout(), err)
					ts.Check(err)
					return
				}
				_, err = fmt.Fprintf(ts.Stdout(), "%sexit code %d\n", res.Stdout, *res.ExitCode)
				ts.Check(err)
			},
			// attach attaches a sandbox/v1 worker until the end of the script: attach FILE TOKEN SANDBOX
			"attach": func(ts *testscript.TestScript, _ bool, args []string) {
				w := &plainrelay.Worker{Relay: listensOn(ts, args[0]), Token: args[1], Sandbox: args[2], Dir: ts.MkAbs(".")}
				ctx, cancel := context.WithCancelCause(context.Background())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				ts.Defer(func() {
					cancel(errors.New("the script is over"))
					if err := <-ended; err != nil {
						ts.Logf("attached worker: %v", err) // the gateway may have ended before
					}
				})
			},
			// token writes a credential to a file as the shell's > would: token FILE ROLE ID
			"token": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Exec("sandbus", "auth", "issue", args[1], args[2]))
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ts.ReadFile("stdout")), 0o600))
			},
		},
	})
}
