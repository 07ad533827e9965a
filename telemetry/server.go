package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config says what is shown.
type Config struct {
	// Addr is HOST:PORT to listen on; port 0 means a free one. Must not be empty.
	Addr string
	// Collectors are shown at /metrics, besides those of the process and of Go.
	Collectors []prometheus.Collector
	// Health is asked for /healthz: nil means 200, an error 503 with its text. Nil means that the process is healthy while it
	// answers.
	Health func() error
	// Logger gets what goes wrong; nil discards it.
	Logger *slog.Logger
}

// Server serves /metrics and /healthz.
type Server struct {
	ln   net.Listener
	srv  *http.Server
	done sync.WaitGroup
}

const (
	readLimit  = 5 * time.Second
	writeLimit = 30 * time.Second
	stopLimit  = 2 * time.Second
	// maxScrapes bounds the scrapes at once: each costs memory.
	maxScrapes = 4
)

// Start listens. Errors: an address that is none, or is taken; a collector that clashes with another one.
func Start(cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	reg := prometheus.NewRegistry()
	for _, c := range append([]prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, cfg.Collectors...) {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(context.Background(), "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("metrics address %q: %w: want HOST:PORT that is free, such as 127.0.0.1:9464", cfg.Addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if cfg.Health != nil {
			if err := cfg.Health(); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = fmt.Fprintln(w, err) // whoever asked is gone
				return
			}
		}
		_, _ = fmt.Fprintln(w, "ok") // likewise
	})
	s := &Server{ln: ln, srv: &http.Server{
		Handler: mux, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: writeLimit, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}}
	s.done.Go(func() {
		if err := s.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("metrics are not served any more", "error", err)
		}
	})
	return s, nil
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Stop ends the server; scrapes under way get 2 s. It may be called twice, and for nil.
func (s *Server) Stop() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if s.srv.Shutdown(ctx) != nil {
		_ = s.srv.Close() // all that can be done
	}
	s.done.Wait()
}
