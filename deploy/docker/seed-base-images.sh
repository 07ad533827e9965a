#!/usr/bin/env bash
# Makes the base images of our Dockerfiles and of docker-compose.yaml where no image registry can be reached: from Debian
# packages (by the sources that apt has on this machine), the Go toolchain here, and the Go modules of go.sum. Their names
# are those of the official images, so that the very same Dockerfiles are built. An image that is there already is left
# alone; with an image registry at hand this script is not needed.
#
# Needs root, a Docker engine, debootstrap, and Go. SEED_FORCE=1 makes all images anew.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

has() { [ -z "${SEED_FORCE:-}" ] && docker image inspect "$1" >/dev/null 2>&1; }

say() { printf 'seed: %s (%ss)\n' "$1" "$SECONDS"; }

# import NAME CHANGE... < tar
import() {
	local name=$1 changes=()
	shift
	for c in "$@"; do changes+=(--change "$c"); done
	docker import "${changes[@]}" --change "LABEL org.sandbus.seeded=true" - "$name" >/dev/null
	say "$name"
}

# The mirror that apt uses for Debian itself.
mirror() {
	apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v -- -security | head -1
}

path=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

debian=debian:bookworm-slim
if ! has $debian; then
	mkdir "$work/debian"
	debootstrap --variant=minbase --include=ca-certificates bookworm "$work/debian" "$(mirror)" >"$work/debootstrap.log" 2>&1 ||
		{ tail -20 "$work/debootstrap.log" >&2; exit 1; }
	# As the official slim image: no documentation, no package lists.
	rm -rf "$work"/debian/usr/share/{doc,man,info,locale}/* "$work"/debian/var/{cache/apt,lib/apt/lists}/*
	tar -C "$work/debian" --numeric-owner -c . | import $debian "ENV $path" 'CMD ["bash"]'
fi

busybox=busybox:stable
if ! has $busybox; then
	b="$work/busybox"
	mkdir -p "$b"/{bin,etc,tmp,root,dev,proc,sys,usr/bin,var}
	chmod 1777 "$b/tmp"
	cp "$(command -v busybox)" "$b/bin/busybox"
	for a in $("$b/bin/busybox" --list); do [ "$a" = busybox ] || ln -s busybox "$b/bin/$a"; done
	printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$b/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' >"$b/etc/group"
	tar -C "$b" --numeric-owner --owner 0 --group 0 -c . | import $busybox "ENV $path" 'CMD ["sh"]'
fi

golang=golang:1.26-bookworm
# The modules are in the image: what go.sum has now, for the packages below.
mods=$(cat go.sum deploy/docker/seed-base-images.sh | sha256sum | cut -c1-16)
if ! has $golang || [ "$(docker image inspect -f '{{index .Config.Labels "org.sandbus.modules"}}' $golang)" != "$mods" ]; then
	g="$work/golang"
	mkdir -p "$g/usr/local" "$g/go"
	cp -a "$(go env GOROOT)" "$g/usr/local/go"
	for arch in amd64 arm64; do
		GOMODCACHE="$g/go/pkg/mod" GOFLAGS=-modcacherw GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)" GONOSUMDB='*' \
			GOARCH=$arch CGO_ENABLED=0 go list -deps ./cmd/... ./loadtest >/dev/null
	done
	find "$g/go/pkg/mod/cache/download" -name '*.zip' -delete # unpacked beside it
	tar -C "$g" --numeric-owner --owner 0 --group 0 -c . >"$work/golang.tar"
	rm -rf "$g"
	printf 'FROM %s\nADD golang.tar /\nENV GOPATH=/go GOTOOLCHAIN=local GOPROXY=off PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nWORKDIR /go\nLABEL org.sandbus.seeded=true org.sandbus.modules=%s\n' \
		$debian "$mods" >"$work/golang.Dockerfile"
	tar -C "$work" -c golang.Dockerfile golang.tar | DOCKER_BUILDKIT=0 docker build -q -f golang.Dockerfile -t $golang - >/dev/null
	rm "$work/golang.tar"
	say $golang
fi

# The version is that of the server that the tests embed. The alpine variant, as the official one, has a shell and wget.
nats=nats:$(go list -m -f '{{.Version}}' github.com/nats-io/nats-server/v2 | sed 's/^v//; s/\.[0-9]*$//')-alpine
if ! has "$nats"; then
	n="$work/nats"
	mkdir -p "$n/usr/local/bin"
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$n/usr/local/bin/nats-server" github.com/nats-io/nats-server/v2
	tar -C "$n" --numeric-owner --owner 0 --group 0 -cf "$work/nats.tar" .
	printf 'FROM %s\nADD nats.tar /\nLABEL org.sandbus.seeded=true\nEXPOSE 4222 6222 8222\nENTRYPOINT ["nats-server"]\nCMD ["--config", "/etc/nats/nats-server.conf"]\n' \
		$busybox >"$work/nats.Dockerfile"
	tar -C "$work" -c nats.Dockerfile nats.tar | DOCKER_BUILDKIT=0 docker build -q -f nats.Dockerfile -t "$nats" - >/dev/null
	say "$nats"
fi

prometheus=prom/prometheus:latest
if ! has $prometheus; then
	p="$work/prometheus"
	mkdir -p "$p/deb" "$p/root/bin" "$p/root/etc/prometheus"
	(cd "$p" && apt-get download -q prometheus >/dev/null && dpkg-deb -x prometheus_*.deb deb)
	cp "$p/deb/usr/bin/prometheus" "$p/root/bin/prometheus"
	tar -C "$p/root" --numeric-owner --owner 0 --group 0 -cf "$work/prometheus.tar" .
	printf 'FROM %s\nADD prometheus.tar /\nLABEL org.sandbus.seeded=true\nENTRYPOINT ["/bin/prometheus"]\nCMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]\n' \
		$debian >"$work/prometheus.Dockerfile"
	tar -C "$work" -c prometheus.Dockerfile prometheus.tar | DOCKER_BUILDKIT=0 docker build -q -f prometheus.Dockerfile -t $prometheus - >/dev/null
	say $prometheus
fi
