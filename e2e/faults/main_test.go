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
	"strconv"
	"syscall"
	"testing"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/bus/hub"
	"github.com/sandbus/sandbus/internal/testenv"
	"github.com/sandbus/sandbus/workerd/command"
)

const (
	// roleVar makes this binary one of the processes of a run.
	roleVar = "FAULTS_ROLE"
	// worldVar marks all processes of a run, and what they start, by the run's directory.
	worldVar = "FAULTS_WORLD"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		flag.Parse()
		if err := flag.Set("test.parallel", strconv.Itoa(*atOnce)); err != nil {
			panic(err)
		}
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
	case "storm":
		return playStorm(ctx, log)
	}
	return fmt.Errorf("role %q: there is none", role)
}

// playRegistrar keeps presence, with the hub's system account beside, until ctx ends.
func playRegistrar(ctx context.Context, log *slog.Logger) error {
	closed := make(chan error, 2)
	connect := func(file string) (cfg bus.Config, err error) {
		cred, err := bus.LoadCredential(os.Getenv(file))
		return bus.Config{
			URL: os.Getenv("SANDBUS_URL"), Credential: cred, ConnectTimeout: -1, Logger: log,
			OnClosed: func(err error) { closed <- err },
		}, err
	}
	own, err := connect("SANDBUS_CREDS")
	if err != nil {
		return err
	}
	observer, err := connect("FAULTS_SYSTEM_CREDS")
	if err != nil {
		return err
	}
	replicas, err := strconv.Atoi(os.Getenv("FAULTS_REPLICAS"))
	if err != nil {
		return err
	}
	system, err := bus.ConnectSystem(ctx, observer)
	if err != nil {
		return err
	}
	defer system.Close()
	conn, err := bus.Connect(ctx, own)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := bus.StartRegistrar(ctx, conn, bus.RegistrarConfig{Replicas: replicas, System: system, Logger: log})
	if err != nil {
		return err
	}
	defer r.Stop()
	fmt.Println(readyLine)
	select {
	case <-ctx.Done():
		return nil
	case err := <-closed:
		return err
	}
}

// spoken waits for a process's ready line.
func spoken(r io.Reader) error {
	line := make([]byte, len(readyLine)+1)
	if _, err := io.ReadFull(r, line); err != nil || string(line) != readyLine+"\n" {
		return errors.Join(fmt.Errorf("it said %q, not %q", line, readyLine), err)
	}
	return nil
}
