package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd/command"
)

// roleVar makes this binary one of the processes of a run.
const roleVar = "FAULTS_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		flag.Parse()
		testenv.Main(m)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := play(ctx, role)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // a test's main
	}
	os.Exit(0) //nolint:forbidigo // likewise
}

// readyLine is what a process says when it serves.
const readyLine = "ready"

func play(ctx context.Context, role string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	switch role {
	case "hub":
		s, err := hub.StartServer(os.Getenv("FAULTS_CONFIG"), log)
		if err != nil {
			return err
		}
		defer s.Stop()
		fmt.Println(readyLine)
		<-ctx.Done()
		return nil
	case "registrar":
		return playRegistrar(ctx, log)
	case "worker":
		if code := command.Run(ctx, "worker", nil, os.Getenv, os.Stdout, os.Stderr, nil, "test"); code != 0 {
			return fmt.Errorf("worker: exit status %d", code)
		}
		return nil
	case "harness":
		return playHarness(ctx, log)
	}
	return fmt.Errorf("role %q: there is none", role)
}

func playRegistrar(ctx context.Context, log *slog.Logger) error {
	cred, err := bus.LoadCredential(os.Getenv("SANDBUS_CREDS"))
	if err != nil {
		return err
	}
	conn, err := bus.Connect(ctx, bus.Config{URL: os.Getenv("SANDBUS_URL"), Credential: cred, ConnectTimeout: -1, Logger: log})
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := startRegistrar(ctx, conn, log)
	if err != nil {
		return err
	}
	fmt.Println(readyLine)
	<-ctx.Done()
	r.Stop()
	return nil
}

// spoken waits for a process's ready line and then takes the rest of what it says.
func spoken(r io.Reader) error {
	var line string
	if _, err := fmt.Fscanln(r, &line); err != nil || line != readyLine {
		return errors.Join(fmt.Errorf("it said %q, not %q", line, readyLine), err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }() // ends with the process
	return nil
}
