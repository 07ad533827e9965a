package pace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// precise is a descriptor of the kernel's that becomes readable at the moment: the network poller wakes for it as
// soon as for a message.
type precise struct{ file *os.File }

// NewTimer makes a timer that is as exact as the machine allows. Errors: no descriptor is left.
func NewTimer() (Timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	return &precise{os.NewFile(uintptr(fd), "timer")}, nil
}

func (p *precise) WaitUntil(ctx context.Context, t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}
	raw, err := p.file.SyscallConn()
	if err == nil {
		var set error
		err = errors.Join(raw.Control(func(fd uintptr) { set = unix.TimerfdSettime(int(fd), 0, &spec, nil) }), set)
	}
	if err != nil {
		return ordinary{}.WaitUntil(ctx, t)
	}
	_ = p.file.SetReadDeadline(time.Time{}) // the poller takes timers
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var expirations [8]byte
	_, err = p.file.Read(expirations[:])
	return err == nil && ctx.Err() == nil
}

func (p *precise) Close() { _ = p.file.Close() }
