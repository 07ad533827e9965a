package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// Server is a nats-server in this process, without a registrar and without state of its own.
type Server struct{ srv *server.Server }

// StartServer runs a nats-server as a configuration file says, such as one that "sandbus auth server-config" printed; it
// serves when StartServer returns. Errors: the configuration, a taken port.
func StartServer(file string, log *slog.Logger) (*Server, error) {
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	return startServer(opts, log)
}

func startServer(opts *server.Options, log *slog.Logger) (*Server, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	opts.NoSigs = true // it would trap signals and exit the process
	if !opts.DontListen {
		if err := checkFree(opts); err != nil {
			return nil, err
		}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	srv.SetLoggerV2(&serverLog{log}, false, false, false)
	if g, ok := opts.CustomClientAuthentication.(*gate); ok {
		g.srv = srv
	}
	s := &Server{srv}
	srv.Start()
	if !srv.ReadyForConnections(readyWait) {
		s.Stop()
		return nil, fmt.Errorf("hub: not ready after %s", readyWait)
	}
	return s, nil
}

// checkFree looks for taken ports: the server itself says of one only in its log (nats-notes.md, 8).
func checkFree(opts *server.Options) error {
	for _, l := range []struct {
		host string
		port int
	}{{opts.Host, opts.Port}, {opts.Websocket.Host, opts.Websocket.Port}, {opts.LeafNode.Host, opts.LeafNode.Port}} {
		if l.port <= 0 {
			continue
		}
		taken, err := net.Listen("tcp", net.JoinHostPort(l.host, strconv.Itoa(l.port))) //nolint:noctx // it does not wait, and is only a question
		if err != nil {
			return fmt.Errorf("hub port %d: %w", l.port, err)
		}
		if err := taken.Close(); err != nil {
			return fmt.Errorf("hub port %d: %w", l.port, err)
		}
	}
	return nil
}

// URL is the address for clients.
func (s *Server) URL() string { return s.srv.ClientURL() }

// WebSocketURL is the address for clients over WebSocket, when there is such a listener.
func (s *Server) WebSocketURL() string { return s.srv.WebsocketURL() }

// LeafURL is the address for leaf nodes. Errors: there is no such listener.
func (s *Server) LeafURL() (string, error) {
	v, err := s.srv.Varz(nil)
	if err != nil {
		return "", fmt.Errorf("hub: %w", err)
	}
	if v.LeafNode.Port <= 0 {
		return "", errors.New("hub: it has no listener for leaf nodes")
	}
	u := url.URL{Scheme: "nats-leaf", Host: net.JoinHostPort(v.LeafNode.Host, strconv.Itoa(v.LeafNode.Port))}
	return u.String(), nil
}

// Leafs is how many leaf nodes are connected.
func (s *Server) Leafs() int { return s.srv.NumLeafNodes() }

// Stop disconnects all clients and ends the server. It may be called twice.
func (s *Server) Stop() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// serverLog brings the server's messages into ours.
type serverLog struct{ log *slog.Logger }

func (l *serverLog) Noticef(string, ...any) {} // start-up chatter
func (l *serverLog) Debugf(string, ...any)  {}
func (l *serverLog) Tracef(string, ...any)  {}

func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Warn("hub server", "message", fmt.Sprintf(format, v...))
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Error("hub server", "message", fmt.Sprintf(format, v...))
}

func (l *serverLog) Fatalf(format string, v ...any) {
	l.log.Error("hub server", "message", fmt.Sprintf(format, v...))
}
