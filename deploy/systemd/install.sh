#!/bin/sh
# Installs sandbus on this host from files that are here already: binaries of "make build" and the units beside this
# script. It downloads nothing.
#
#   ./install.sh [--root DIR] [--bin DIR] hub|worker|all
#
#   --root DIR  install below DIR instead of / (packaging, tests): no user is made, systemd is not told
#   --bin DIR   where the binaries sandbus and workerd are (default: bin/ of the checkout)
#
# What is there is replaced; files in /etc/sandbus are never touched. Uninstall: remove what it prints.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=
bin=$here/../../bin

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }

die() {
	echo "install.sh: $1" >&2
	exit "${2:-1}"
}

while [ $# -gt 0 ]; do
	case $1 in
	--root) [ $# -ge 2 ] || die "--root: want a directory" 2; root=${2%/}; shift 2 ;;
	--bin) [ $# -ge 2 ] || die "--bin: want a directory" 2; bin=$2; shift 2 ;;
	-h | --help) usage; exit 0 ;;
	-*) die "unknown flag $1; see install.sh --help" 2 ;;
	*) break ;;
	esac
done
[ $# -eq 1 ] || die "want one of hub, worker, all; see install.sh --help" 2
case $1 in
hub) binaries=sandbus units=sandbus-hub.service users=sandbus ;;
worker) binaries=workerd units=sandbus-worker@.service users=sandbus-worker ;;
all) binaries="sandbus workerd" units="sandbus-hub.service sandbus-worker@.service" users="sandbus sandbus-worker" ;;
*) die "$1: want hub, worker or all" 2 ;;
esac

# Everything is checked before anything is done.
for b in $binaries; do
	[ -f "$bin/$b" ] && [ -x "$bin/$b" ] || die "$bin/$b is no program; run \"make build\", or say where it is by --bin"
done
if [ -n "$root" ]; then
	[ -d "$root" ] || die "--root $root: is no directory"
else
	[ "$(id -u)" = 0 ] || die "must run as root, or with --root"
	command -v systemctl >/dev/null || die "systemctl is not there: this host does not run systemd; start the binaries by hand"
fi

put() { # mode file directory
	mkdir -p "$root$3"
	cp "$2" "$root$3/.${2##*/}.new"
	chmod "$1" "$root$3/.${2##*/}.new"
	mv "$root$3/.${2##*/}.new" "$root$3/${2##*/}" # a running program keeps its old file
	echo "$3/${2##*/}"
}

for b in $binaries; do put 0755 "$bin/$b" /usr/local/bin; done
for u in $units; do put 0644 "$here/$u" /etc/systemd/system; done
mkdir -p "$root/etc/sandbus"
chmod 0755 "$root/etc/sandbus"

if [ -z "$root" ]; then
	for u in $users; do
		id "$u" >/dev/null 2>&1 || useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$u"
	done
	systemctl daemon-reload
fi

case $1 in
hub | all) echo "next: systemctl enable --now sandbus-hub" ;;
esac
case $1 in
worker | all) echo "next: put box1.creds (mode 0600) and box1.env (SANDBUS_URL=...) into /etc/sandbus, then: systemctl enable --now sandbus-worker@box1" ;;
esac
