package workerd

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
	"github.com/sandbus/sandbus/workerd/shell"
)

func (w *Worker) registerShell(srv *bus.Server) {
	srv.HandleInOrder("shell.run", w.runShell)
	srv.HandleStream("session.open", w.openSession)
	srv.HandleStream("session.close", w.closeSession)
	srv.HandleStream("session.list", w.listSessions)
}

// runShell serves shell.run. It is called in the order of arrival, which is the order in which a session runs its
// commands.
func (w *Worker) runShell(r *bus.Request) {
	var req sandbusv1.ShellRunRequest
	ctx, err := r.Decode(&req)
	if err != nil {
		r.Fail(err)
		return
	}
	c, err := w.shellCommand(&req)
	if err != nil {
		r.Fail(err)
		return
	}
	run := w.runFast
	if name := req.GetSession(); name != "" {
		if run, err = w.queueSession(r.Harness, name); err != nil {
			r.Fail(err)
			return
		}
	}
	r.Detach(func() {
		resp, err := run(ctx, c)
		if cause := r.Fenced(); cause != nil {
			r.Fail(cause)
			return
		}
		if err = shellError(err); err != nil && ctx.Err() != nil { // it was still in the queue
			resp, err = &sandbusv1.ShellRunResponse{Outcome: &sandbusv1.Outcome{Kind: sandbusv1.OutcomeKind_OUTCOME_KIND_ABORTED}}, nil
		}
		if err != nil {
			r.Fail(err)
			return
		}
		r.Reply(resp)
	})
}

// shellCommand checks a request.
func (w *Worker) shellCommand(req *sandbusv1.ShellRunRequest) (c shell.Command, err error) {
	c = shell.Command{
		Script: bus.FromText(req.GetScript(), req.GetScriptRaw()), Stdin: req.GetStdin(), HasStdin: req.GetHasStdin(),
		Limit: req.GetOutputLimit(),
	}
	if err := checkScript(c.Script); err != nil {
		return c, err
	}
	if c.Dir, err = w.dir(bus.FromText(req.GetCwd(), req.GetCwdRaw())); err != nil {
		return c, err
	}
	if c.Env, err = checkEnv(req.GetEnv(), true); err != nil {
		return c, err
	}
	if c.Timeout, err = checkTimeout("timeout", req.GetTimeoutMs(), maxTimeout); err != nil {
		return c, err
	}
	if len(c.Stdin) > 0 && !c.HasStdin {
		return c, invalid("%d bytes of stdin without has_stdin", len(c.Stdin))
	}
	if c.Limit < 0 || c.Limit > maxOutput {
		return c, invalid("output limit %d: want 1 to %d bytes, or 0 for %d", c.Limit, maxOutput, defaultOutput)
	}
	if c.Limit == 0 {
		c.Limit = defaultOutput
	}
	if most := w.cfg.MaxOutput; most > 0 {
		c.Limit = min(c.Limit, most)
	}
	return c, nil
}

type shellRunner = func(context.Context, shell.Command) (*sandbusv1.ShellRunResponse, error)

func (w *Worker) runFast(ctx context.Context, c shell.Command) (*sandbusv1.ShellRunResponse, error) {
	if w.shells == nil {
		return &sandbusv1.ShellRunResponse{Outcome: noShell()}, nil
	}
	return w.shells.Run(ctx, c)
}

// queueSession takes the command's place in a session's line and returns what runs it.
func (w *Worker) queueSession(owner bus.HarnessID, name string) (shellRunner, error) {
	key, err := w.sessionKey(owner, name)
	if err != nil {
		return nil, err
	}
	turn, err := w.sessions.Queue(key)
	if err != nil {
		return nil, shellError(err)
	}
	return func(ctx context.Context, c shell.Command) (*sandbusv1.ShellRunResponse, error) {
		res, err := turn.Run(ctx, c)
		if err != nil {
			return nil, err
		}
		resp := res.ShellRunResponse
		resp.SessionLost, resp.SessionFresh = res.Lost, res.Fresh
		resp.Cwd, resp.CwdRaw = bus.ToText(res.Dir)
		resp.CwdGone, resp.CwdGoneRaw = bus.ToText(res.Gone)
		return resp, nil
	}, nil
}

// sessionKey checks a session's name.
func (w *Worker) sessionKey(owner bus.HarnessID, name string) (shell.SessionKey, error) {
	if _, err := bus.ParseSessionID(name); err != nil {
		return shell.SessionKey{}, invalid("%v", err)
	}
	if owner == "" {
		return shell.SessionKey{}, invalid("a session belongs to a harness: want a reply subject rep.ZONE.ID.HARNESS.CONN.OP")
	}
	if w.sessions == nil {
		return shell.SessionKey{}, &bus.Error{Code: sandbusv1.Code_CODE_NOT_FOUND, Message: noShell().GetMessage(), Errno: int32(unix.ENOENT)}
	}
	return shell.SessionKey{Owner: string(owner), Name: name}, nil
}

// shellError gives the errors of package shell their codes.
func shellError(err error) error {
	var se *proc.StartError
	switch {
	case errors.Is(err, shell.ErrBusy), errors.Is(err, shell.ErrSessions):
		return bus.Errorf(sandbusv1.Code_CODE_BUSY, "%v", err)
	case errors.Is(err, shell.ErrClosed):
		return bus.Errorf(sandbusv1.Code_CODE_DRAINING, "the worker is stopping")
	case errors.Is(err, shell.ErrNoSession):
		return bus.Errorf(sandbusv1.Code_CODE_NOT_FOUND, "%v", err)
	case errors.As(err, &se):
		code := sandbusv1.Code_CODE_NOT_FOUND
		switch {
		case errors.Is(err, unix.ENOTDIR):
			code = sandbusv1.Code_CODE_NOT_DIRECTORY
		case errors.Is(err, unix.EACCES):
			code = sandbusv1.Code_CODE_PERMISSION
		}
		return &bus.Error{Code: code, Message: se.Error(), Errno: se.Outcome().GetErrno()}
	}
	return err
}

// openSession serves session.open.
func (w *Worker) openSession(r *bus.Request) {
	var req sandbusv1.SessionOpenRequest
	_, err := r.Decode(&req)
	if err != nil {
		r.Fail(err)
		return
	}
	resp, err := w.open(r.Harness, &req)
	if err != nil {
		r.Fail(shellError(err))
		return
	}
	r.Reply(resp)
}

func (w *Worker) open(owner bus.HarnessID, req *sandbusv1.SessionOpenRequest) (*sandbusv1.SessionOpenResponse, error) {
	key, err := w.sessionKey(owner, req.GetName())
	if err != nil {
		return nil, err
	}
	dir, err := w.dir(bus.FromText(req.GetCwd(), req.GetCwdRaw()))
	if err != nil {
		return nil, err
	}
	created, err := w.sessions.Open(key, dir)
	if err != nil {
		return nil, err
	}
	if req.GetMeta().GetLease() != "" {
		w.sessions.Keep(key)
	}
	return &sandbusv1.SessionOpenResponse{Created: created, IdleMs: w.cfg.SessionIdle.Milliseconds()}, nil
}

// closeSession serves session.close.
func (w *Worker) closeSession(r *bus.Request) {
	var req sandbusv1.SessionCloseRequest
	_, err := r.Decode(&req)
	if err == nil {
		var key shell.SessionKey
		if key, err = w.sessionKey(r.Harness, req.GetName()); err == nil {
			err = w.sessions.Close(key)
		}
	}
	if err != nil {
		r.Fail(shellError(err))
		return
	}
	r.Reply(&sandbusv1.SessionCloseResponse{})
}

// listSessions serves session.list.
func (w *Worker) listSessions(r *bus.Request) {
	var req sandbusv1.SessionListRequest
	if _, err := r.Decode(&req); err != nil {
		r.Fail(err)
		return
	}
	resp := &sandbusv1.SessionListResponse{}
	if w.sessions != nil {
		for _, s := range w.sessions.List(string(r.Harness)) {
			m := &sandbusv1.SessionInfo{
				Name: s.Name, Busy: s.Busy, Queued: int32(s.Queued), UnusedMs: s.Idle.Milliseconds(), AgeMs: s.Age.Milliseconds(),
			}
			m.Cwd, m.CwdRaw = bus.ToText(s.Dir)
			resp.Sessions = append(resp.Sessions, m)
		}
	}
	r.Reply(resp)
}
