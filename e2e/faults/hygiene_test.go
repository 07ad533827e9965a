package faults

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbus/sandbus/e2e/faults/history"
	"github.com/sandbus/sandbus/harnesslib"
)

// maxSubscriptions is how many a connection may have that has nothing to do.
const maxSubscriptions = 64

// left notes something that was left behind.
func (w *world) left(format string, v ...any) {
	w.rec.Add(history.Event{Kind: history.Left, Detail: fmt.Sprintf(format, v...)})
}

// clean ends the world in good order and notes what is left behind on the way.
func (w *world) clean(ctx context.Context) error {
	h, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := w.idle(ctx, h); err != nil {
		return err
	}
	for _, p := range w.workers {
		if !p.hasEnded() {
			if err := p.stop(); err != nil {
				w.left("worker %s does not end as it should: %v", p.name, err)
			}
		}
	}
	if err := w.known(ctx, h, 0); err != nil {
		w.left("presence: %v", err)
	}
	h.Close()
	w.checkProcesses(ctx)
	w.checkFiles()
	for _, p := range w.registrars {
		if err := p.stop(); err != nil {
			w.left("%v", err)
		}
	}
	w.checkConnections(ctx, func(c connz) string {
		if c.Total != 0 {
			return fmt.Sprintf("%d connections are left", c.Total)
		}
		return ""
	})
	for _, p := range w.hub {
		if err := p.stop(); err != nil {
			w.left("%v", err)
		}
	}
	return nil
}

// idle waits until nothing runs and no slot is taken in the sandboxes that are left.
func (w *world) idle(ctx context.Context, h *harnesslib.Hub) error {
	for i, p := range w.workers {
		if p.hasEnded() {
			continue
		}
		sb, err := h.Sandbox(box(i))
		if err != nil {
			return err
		}
		var last string
		err = poll(ctx, func() (bool, error) {
			list, err := sb.Execs(ctx)
			if err != nil {
				last = err.Error()
				return false, nil //nolint:nilerr // it is asked again
			}
			running := slices.DeleteFunc(list, func(e harnesslib.ExecInfo) bool { return !e.Running })
			info, err := sb.Info(ctx)
			last = fmt.Sprintf("execs %v, %d slots taken, error %v", running, info.Used, err)
			return err == nil && len(running) == 0 && info.Used == 0, nil
		}, func() string { return last })
		if err != nil {
			w.left("sandbox %s is not idle: %v", box(i), err)
		}
	}
	w.checkConnections(ctx, func(c connz) string {
		for _, conn := range c.Connections {
			if conn.Subscriptions > maxSubscriptions {
				return fmt.Sprintf("connection %q has %d subscriptions and nothing to do", conn.Name, conn.Subscriptions)
			}
		}
		return ""
	})
	return nil
}

// connz is what is read of a server's list of connections.
type connz struct {
	Total       int `json:"num_connections"`
	Connections []struct {
		Name          string `json:"name"`
		Subscriptions int    `json:"subscriptions"`
	} `json:"connections"`
}

// ask reads a monitoring page of a server.
func (w *world) ask(ctx context.Context, i int, page string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.hubAddr(i, monitorPort)+page, nil)
	if err != nil {
		return err
	}
	req.Close = true // nothing of it stays
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(resp.Body).Decode(answer), resp.Body.Close())
}

// checkConnections waits until no server's connections are wrong.
func (w *world) checkConnections(ctx context.Context, wrong func(connz) string) {
	for i := range w.hub {
		var last string
		err := poll(ctx, func() (bool, error) {
			var c connz
			if err := w.ask(ctx, i, "/connz?limit=4096", &c); err != nil {
				last = err.Error()
				return false, nil //nolint:nilerr // it is asked again
			}
			last = wrong(c)
			return last == "", nil
		}, func() string { return last })
		if err != nil {
			w.left("at hub server %d: %v", i, err)
		}
	}
}

// checkProcesses looks for processes that were started in this world, other than those that we hold.
func (w *world) checkProcesses(ctx context.Context) {
	ours := map[int]bool{}
	for _, p := range w.all {
		ours[p.cmd.Process.Pid] = true
	}
	var found []string
	err := poll(ctx, func() (bool, error) {
		found = nil
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return false, err
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || ours[pid] {
				continue
			}
			env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
			if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), worldVar+"="+w.dir) {
				continue // it has ended, is another user's, or has nothing to do with us
			}
			cmd, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // for the message only
			found = append(found, fmt.Sprintf("%d %q", pid, cmd))
		}
		return len(found) == 0, nil
	}, func() string { return fmt.Sprintf("processes: %v", found) })
	if err != nil {
		w.left("%v", err)
		for _, f := range found { // they would outlive the test
			pid, _, _ := strings.Cut(f, " ")
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL) // may have ended
			}
		}
	}
}

// checkFiles looks for files that nobody has asked for.
func (w *world) checkFiles() {
	check := func(dir string, meant func(name string) bool) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			w.left("directory %s: %v", dir, err)
		}
		for _, e := range entries {
			if !meant(e.Name()) {
				w.left("file %s", filepath.Join(dir, e.Name()))
			}
		}
	}
	check(w.tmp, func(string) bool { return false })
	for i := range w.boxes {
		check(w.sandbox(i), func(name string) bool { return name == readFile || strings.HasPrefix(name, "w-") })
	}
}

// truth is what the sandboxes' files say.
func (w *world) truth(events []history.Event) (history.Journal, error) {
	j := history.Journal{Ran: map[string]int{}, Files: map[string]bool{}}
	for i := range w.boxes {
		b, err := os.ReadFile(w.journal(i))
		if err != nil {
			return j, err
		}
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
			j.Ran[s.Text()]++
		}
	}
	for _, e := range events {
		if e.Kind != history.Request || e.Verb != history.Write {
			continue
		}
		i, err := strconv.Atoi(strings.TrimPrefix(e.Sandbox, "box-"))
		if err != nil {
			return j, err
		}
		b, err := os.ReadFile(filepath.Join(w.sandbox(i), "w-"+e.Op))
		if err == nil {
			j.Files[e.Op] = bytes.Equal(b, contentOf(e.Op, e.Lines))
		}
	}
	return j, nil
}
