package workerd

import (
	"context"
	"errors"
	"io"

	"github.com/sandbus/sandbus/bus"
)

// RunPipes serves the one harness at the other end of a pair of pipes until in ends or ctx does, and leaves nothing that
// runs; Config.Pipes must be set. When it serves it writes a line to out that names it (bus.PipeGreeting); what follows
// there is the protocol. It closes both. Errors: the shell does not start, the harness does not keep to the protocol.
func (w *Worker) RunPipes(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	if !w.cfg.Pipes {
		return errors.New("run over pipes: Config.Pipes is not set")
	}
	lost := make(chan error, 1)
	conn := bus.NewPipe(bus.PipeConfig{
		Identity: bus.Identity{Role: bus.RoleSandbox, Zone: w.target.Zone, Name: string(w.target.Sandbox)},
		Logger:   w.cfg.Logger, OnClosed: tell(lost),
	}, in, out)
	defer conn.Close()
	err := w.serve(ctx, conn, conn, lost, func() error {
		_, err := io.WriteString(out, bus.PipeGreeting(w.target)) // before any message: there is none without a request
		if err == nil && w.cfg.OnReady != nil {
			w.cfg.OnReady()
		}
		return err
	})
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
