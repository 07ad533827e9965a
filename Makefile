TOOL := go tool -modfile=$(CURDIR)/tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: all build test check lint vuln generate generated fuzz bench tidy images seed e2e faults faults-ci soak

all: build

build: ## both binaries into bin/, the worker static
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sandbus ./cmd/workerd

test: ## all tests
	go test -parallel 4 -timeout 25m ./...

check: lint vuln generated tidy ## what CI runs
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build ./...
	go test -race -parallel 4 -timeout 25m ./...

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

# The images build on those of a registry; where none can be reached, seed makes these, and keeps those that it made fresh.
DOCKER_BUILDKIT ?= $(shell docker buildx version >/dev/null 2>&1 && echo 1 || echo 0)
DOCKER_BUILD = DOCKER_BUILDKIT=$(DOCKER_BUILDKIT) docker build -q --build-arg VERSION=$(VERSION)
SEEDED = docker image inspect -f '{{index .Config.Labels "org.sandbus.seeded"}}'
images: ## the container images, for this machine's engine
	@case "$$($(SEEDED) golang:1.26-bookworm 2>/dev/null || echo absent)" in \
	*absent) docker pull -q golang:1.26-bookworm 2>/dev/null || $(MAKE) --no-print-directory seed ;; \
	true) $(MAKE) --no-print-directory seed ;; \
	esac
	$(DOCKER_BUILD) -f deploy/docker/sandbus.Dockerfile -t sandbus/sandbus:latest .
	$(DOCKER_BUILD) -f deploy/docker/workerd.Dockerfile -t sandbus/workerd:latest .
	$(DOCKER_BUILD) -f deploy/docker/sandbox.Dockerfile -t sandbus/sandbox:latest deploy

seed: ## base images from Debian packages and the Go toolchain here, where no image registry can be reached
	deploy/docker/seed-base-images.sh

e2e: images ## the deployments on a Docker engine, which takes minutes
	SANDBUS_E2E=1 go test ./e2e -count=1 -timeout 20m -v
	cd deploy/k8s/check && go test ./...

# AT_ONCE runs beside one another: they mostly wait.
AT_ONCE ?= 10
faults: ## breaks everything, twenty ways of each: minutes, as root for some; see e2e/faults
	go test ./e2e/faults -run 'TestFaults|TestTheCheckIsMade' -seeds 20 -at-once $(AT_ONCE) -timeout 60m -v

faults-ci: ## the same, one of each
	go test ./e2e/faults -run 'TestFaults|TestTheCheckIsMade' -seeds 1 -at-once $(AT_ONCE) -timeout 15m -v

SOAK ?= 1h
soak: ## works like agents for SOAK while things break; memory and descriptors must stay flat
	go test ./e2e/faults -run TestSoak -soak $(SOAK) -timeout 3h -v
