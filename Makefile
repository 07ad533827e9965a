TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: all build test check lint vuln generate generated fuzz bench tidy faults faults-ci soak

all: build

build: ## both binaries into bin/, the worker static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sandbus ./cmd/workerd

test: ## all tests
	go test -timeout 25m ./...

check: lint vuln generated tidy ## what CI runs
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build ./...
	go test -race -timeout 25m ./...

lint:
	go vet ./...
	$(TOOL) golangci-lint run ./...
	cd schemas && $(TOOL) buf lint && $(TOOL) buf format -d --exit-code
	cd schemas && { ! git rev-parse -q --verify HEAD^ >/dev/null || $(TOOL) buf breaking --against '../.git#ref=$(BREAKING_BASE),subdir=schemas'; }

# Its database comes from vuln.go.dev: where that cannot be had nothing is known, and a skip must be seen. A small package
# asks first. (gosec is one of golangci-lint's.)
vuln: ## known vulnerabilities in what we use
	@rc=0; out=$$(timeout 180 $(TOOL) govulncheck ./textedit 2>&1) || rc=$$?; \
	if [ $$rc -eq 0 ]; then rc=0; out=$$(timeout 900 $(TOOL) govulncheck ./... 2>&1) || rc=$$?; fi; \
	case $$rc in \
	0) echo "govulncheck: nothing known" ;; \
	3) echo "$$out"; exit 1 ;; \
	*) echo "$$out" | tail -n 3; echo "*** SKIPPED: govulncheck did not run (status $$rc, see above): what we use was not checked ***" ;; \
	esac

# What a change of the schemas is compared with: the commit before this one.
BREAKING_BASE ?= HEAD^

generate: ## the Go code of schemas/
	cd schemas && $(TOOL) buf format -w && $(TOOL) buf generate

generated: ## fails when the committed code is not what generate makes
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && cd schemas && $(TOOL) buf generate -o "$$tmp" && \
	for f in $$(find . -name '*.pb.go'); do cmp "$$f" "$$tmp/$$f" || { echo "run: make generate" >&2; exit 1; }; done

tidy: ## fails when go.mod is not what go mod tidy makes
	go mod tidy -diff

FUZZTIME ?= 20s
fuzz: ## each fuzz test for FUZZTIME
	@set -e; for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; done

bench: ## the ratios of this machine, three processes on loopback
	go test -run '^$$$$' -bench . -benchtime 1x -timeout 30m ./bench

# AT_ONCE runs beside one another: they mostly wait.
AT_ONCE ?= 10
faults: ## breaks everything, twenty ways of each: minutes, as root for some; see e2e/faults
	go test ./e2e/faults -run 'TestFaults|TestTheCheckIsMade' -seeds 20 -at-once $(AT_ONCE) -timeout 60m -v | { grep -v '^=== ' || true; }

faults-ci: ## the same, one of each
	go test ./e2e/faults -run 'TestFaults|TestTheCheckIsMade' -seeds 1 -at-once $(AT_ONCE) -timeout 15m -v | { grep -v '^=== ' || true; }

SOAK ?= 1h
soak: ## works like agents for SOAK while things break; memory and descriptors must stay flat
	go test ./e2e/faults -run TestSoak -soak $(SOAK) -timeout 3h -v
