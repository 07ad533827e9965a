package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// commandWait is how long a program may take to print a credential.
const commandWait = 30 * time.Second

// CommandCredential is a source of credentials for Config.Renew: a program that prints one, in any form that
// [ParseCredential] reads. run runs it; RunCommand does, where nothing else in the process waits for children. Errors
// name the program, never what it printed.
func CommandCredential(argv []string, run func(*exec.Cmd) error) func(context.Context) (Credential, error) {
	return func(ctx context.Context) (Credential, error) {
		if len(argv) == 0 {
			return Credential{}, errors.New("credential command: it is empty")
		}
		ctx, cancel := context.WithTimeout(ctx, commandWait)
		defer cancel()
		out := &bounded{left: maxCredentialFile}
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdout = out
		cmd.WaitDelay = time.Second
		if err := run(cmd); err != nil {
			return Credential{}, fmt.Errorf("credential command %s: %w", argv[0], errors.Join(err, context.Cause(ctx)))
		}
		cred, err := ParseCredential(out.text.String())
		if err != nil {
			return Credential{}, fmt.Errorf("credential command %s: %w", argv[0], err)
		}
		return cred, nil
	}
}

// RunCommand runs a program in a process whose children nobody else waits for.
func RunCommand(cmd *exec.Cmd) error { return cmd.Run() }

// bounded takes so many bytes and no more.
type bounded struct {
	text bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, io.ErrShortWrite
	}
	b.left -= len(p)
	return b.text.Write(p)
}
