package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandbus/sandbus/bus"
	"github.com/sandbus/sandbus/harnesslib"
)

// behindHub and behindSandbox are the checks that need what comes before them.
var (
	behindSandbox = []string{"clock", "files", "shell", "privileges"}
	behindHub     = append([]string{"permissions", "registrar", "sandbox"}, behindSandbox...)
)

func (d *doctor) run(ctx context.Context) {
	cfg, err := d.app.harnessConfig()
	if err == nil {
		err = d.app.findHub(&cfg)
	}
	if err != nil {
		d.add("hub", checkFail, "%v", err)
		d.skip("there is no hub to ask", append([]string{"credential"}, behindHub...)...)
		return
	}
	to, credOK := d.credential(ctx, cfg)
	if !d.reach(ctx, cfg.URL) || !credOK {
		d.skip("the hub was not asked", append([]string{"hub"}, behindHub...)...)
		return
	}
	if role := to.Credential.Identity().Role; role != bus.RoleHarness {
		d.other(ctx, to)
		d.skip(fmt.Sprintf("a %s's credential cannot ask", role), behindHub[1:]...)
		return
	}
	h, err := harnesslib.Connect(ctx, cfg)
	if !d.ok("hub", err, "it takes the credential") {
		d.skip("the hub was not reached, or refuses us", behindHub...)
		return
	}
	defer h.Close()
	attempts, err := h.Try(ctx)
	d.permissions(attempts, err)
	d.sandbox(ctx, h)
}

// credential says whose it is.
func (d *doctor) credential(ctx context.Context, cfg harnesslib.Config) (to bus.Config, ok bool) {
	to, err := busConfig(ctx, cfg)
	if err != nil {
		d.add("credential", checkFail, "%v", err)
		return to, false
	}
	expiry := "without an end of its own"
	cred := to.Credential
	if end := cred.Expires(); !end.IsZero() {
		left := time.Until(end).Round(time.Second)
		if left <= 0 {
			d.add("credential", checkFail, "of %s, expired %s ago", cred.Identity(), -left)
			return to, false
		}
		expiry = fmt.Sprintf("valid for another %s", left)
	}
	d.add("credential", checkOK, "of %s, %s", cred.Identity(), expiry)
	return to, true
}

// hopLimit is how long one hop may take.
const hopLimit = 5 * time.Second

// reach goes to the hub hop by hop: its name, its port. One of several addresses is enough.
func (d *doctor) reach(ctx context.Context, urls string) bool {
	var failed []string
	for u := range strings.SplitSeq(urls, ",") {
		where, err := hop(ctx, strings.TrimSpace(u))
		if err == nil {
			d.add("reach", checkOK, "%s", where)
			return true
		}
		failed = append(failed, err.Error())
	}
	d.add("reach", checkFail, "%s", strings.Join(failed, "; "))
	return false
}

// hop tries one address.
func hop(ctx context.Context, address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("hub URL %q: want one such as nats://hub:4222", address)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"nats": "4222", "tls": "4222", "ws": "80", "wss": "443"}[u.Scheme]
	}
	ctx, cancel := context.WithTimeout(ctx, hopLimit)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, u.Hostname()); err != nil {
		return "", fmt.Errorf("name of the hub: %w", err)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return "", fmt.Errorf("port of the hub: %w", err)
	}
	where := fmt.Sprintf("%s listens", c.RemoteAddr())
	return where, c.Close()
}

// other checks a credential that is no harness's.
func (d *doctor) other(ctx context.Context, to bus.Config) {
	conn, err := bus.Connect(ctx, to)
	if !d.ok("hub", err, "it takes the credential") {
		d.skip("the hub refuses us", "permissions")
		return
	}
	defer conn.Close()
	attempts, err := conn.Try(ctx)
	d.permissions(attempts, err)
}

func (d *doctor) permissions(attempts []bus.Attempt, err error) {
	if err != nil {
		d.add("permissions", checkFail, "%v", err)
		return
	}
	var wrong []string
	for _, a := range attempts {
		if a.Want != a.Allowed {
			wrong = append(wrong, a.String())
		}
	}
	if len(wrong) > 0 {
		d.add("permissions", checkFail, "%s", strings.Join(wrong, "; "))
		return
	}
	d.add("permissions", checkOK, "%d subjects tried: the role's are allowed, others refused", len(attempts))
}

// sandbox checks what is behind the hub.
func (d *doctor) sandbox(ctx context.Context, h *harnesslib.Hub) {
	list, err := h.List(ctx)
	if !d.ok("registrar", err, "%d sandboxes are live", len(list)) {
		d.skip("presence cannot be read", append([]string{"sandbox"}, behindSandbox...)...)
		return
	}
	id := or(d.named, d.app.sandbox, os.Getenv("SANDBUS_SANDBOX"))
	if id == "" && len(list) == 1 {
		id = string(list[0].Sandbox)
	}
	if id == "" {
		d.skip("no sandbox was named", append([]string{"sandbox"}, behindSandbox...)...)
		return
	}
	sb, err := h.Sandbox(id)
	var info harnesslib.SandboxInfo
	if err == nil {
		info, err = sb.Info(ctx)
	}
	if err != nil {
		d.add("sandbox", checkFail, "%v; \"sandbus ps\" lists the live ones", err)
		d.skip("the sandbox is not known", behindSandbox...)
		return
	}
	d.add("sandbox", checkOK, "instance %s, version %s, %s/%s, %s, %d of %d slots taken", info.Instance, plain(info.Version),
		plain(info.OS), plain(info.Arch), plain(info.Trust), info.Used, info.Slots)
	files := d.files(ctx, sb)
	d.shell(ctx, sb, info, files)
	d.privileges(info)
}

// files makes one round trip to the worker.
func (d *doctor) files(ctx context.Context, sb *harnesslib.Sandbox) bool {
	began := time.Now()
	_, err := sb.Stat(ctx, ".")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		d.add("files", checkWarn, "the worker answers: %v", err)
		return true
	}
	return d.ok("files", err, "the worker answered within %s", time.Since(began).Round(10*time.Microsecond))
}

// maxSkew is how far clocks may be apart before credentials that end, and caches, go wrong.
const maxSkew = 5 * time.Second

// shell runs a command and compares the clocks by it: the hub's is that of the registrar, which dates the beats.
func (d *doctor) shell(ctx context.Context, sb *harnesslib.Sandbox, info harnesslib.SandboxInfo, answers bool) {
	switch {
	case !answers:
		d.skip("the worker does not answer", "shell")
	case len(info.Shells) == 0:
		d.skip("the sandbox has none: commands are given as argv", "shell")
	default:
		began := time.Now()
		out, err := sb.ScriptCommand("date +%s").Output(ctx)
		took := time.Since(began)
		if !d.ok("shell", err, "%s ran a command within %s", plain(info.Shells[0]), took.Round(10*time.Microsecond)) {
			break
		}
		seconds, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			d.add("clock", checkWarn, "the sandbox's date says %.40q", out)
			return
		}
		// Whole seconds, taken at some moment of the round trip.
		theirs := time.Unix(seconds, 0)
		if skew := max(began.Sub(theirs)-time.Second, theirs.Sub(began.Add(took))); skew > maxSkew {
			d.add("clock", checkFail, "the sandbox's is %s from ours: leases and timeouts hold all the same, times of files and the ends of credentials do not",
				skew.Round(time.Second))
			return
		}
	}
	d.hubClock(info)
}

// hubClock compares the time of the last beat, which the registrar sets, with ours.
func (d *doctor) hubClock(info harnesslib.SandboxInfo) {
	age := time.Since(info.LastBeat)
	switch {
	case age < -maxSkew:
		d.add("clock", checkFail, "the hub's is %s ahead of ours", (-age).Round(time.Second))
	case age > bus.PresenceTTL+maxSkew:
		d.add("clock", checkFail, "the last beat is %s old by our clock, and counts as live by the hub's: it is behind ours", age.Round(time.Second))
	default:
		d.add("clock", checkOK, "the last beat was %s ago", max(0, age).Round(time.Millisecond))
	}
}

// privileges says what the sandbox says of itself.
func (d *doctor) privileges(info harnesslib.SandboxInfo) {
	if info.Commands == nil || info.Worker == nil || info.Files == nil {
		d.skip("the worker does not say", "privileges")
		return
	}
	result := checkOK
	if (harnesslib.Requirements{RequireUnprivileged: true}).Check(info) != nil {
		result = checkWarn
	}
	d.add("privileges", result, "commands: %s; files: %s; worker: %s", info.Commands, info.Files, info.Worker)
}
