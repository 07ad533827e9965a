package workerd

import (
	"github.com/sandbus/sandbus/bus"
	sandbusv1 "github.com/sandbus/sandbus/schemas/sandbus/v1"
	"github.com/sandbus/sandbus/workerd/proc"
)

// privileges are those of the worker's own process, of the commands that it runs, and of its file operations; nil where
// the system does not tell.
func (w *Worker) privileges() (worker, commands, files *sandbusv1.Privileges) {
	st, err := proc.ReadStatus()
	if err != nil {
		w.cfg.Logger.Debug("privileges not known", "error", err)
		return nil, nil, nil
	}
	own := bus.Privileges{UID: st.UID, GID: st.GID, Capabilities: st.Capabilities, NoNewPrivs: st.NoNewPrivs}
	c, f := own, own
	f.NoNewPrivs = true // they run no programs
	if w.cfg.NoNewPrivs {
		c.NoNewPrivs = true
	}
	if as := w.cfg.RunAs; as != nil {
		c = bus.Privileges{UID: as.UID, GID: as.GID, NoNewPrivs: true}
		if as.UID == 0 {
			c.Capabilities = own.Capabilities // root keeps them across setuid(2)
		}
		f.UID, f.GID = st.FSUID, st.FSGID
		f.Capabilities &= proc.FileCapabilities
	}
	return own.Wire(), c.Wire(), f.Wire()
}
