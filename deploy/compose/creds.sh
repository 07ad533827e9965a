#!/bin/sh
# Makes the keys of an operator, and with them what each service of docker-compose.yaml needs, into a volume of its own:
# nobody mounts another's. It is run by every "docker compose up" and does again only what is missing: a credential that is
# there, and is of these keys, stays. With SANDBUS_CREDS_TTL (such as 24h) credentials end, and each run issues new ones into
# the same files: whoever uses one reads its file again before it ends, so run "docker compose run --rm creds" in time.
set -eu

# Volumes are root's at first. What is in them belongs to the user under whom all services run, and only it can read them.
if [ "$(id -u)" = 0 ]; then
	chown 1000:1000 /keys /out/* /data/*
	chmod 700 /keys /out/* /data/*
	exec setpriv --reuid 1000 --regid 1000 --clear-groups "$0" "$@"
fi
umask 077
export SANDBUS_KEYS=/keys

if ! [ -s /keys/operator.pub ]; then
	sandbus auth init | sed -n 's/^operator //p' | tr A-Z a-z >/keys/.new
	mv /keys/.new /keys/operator.pub
fi
operator=$(cat /keys/operator.pub)

secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# lasting FILE: it is a credential of these keys that never ends
lasting() {
	[ -s "$1" ] || return
	said=$(sandbus auth show "$1" --json) || return
	mark=$(printf %s "$said" | sed -n 's/.*"operator":"\([^"]*\)".*/\1/p')
	case $said in *'"expires"'*) return 1 ;; esac
	case $operator in "${mark:-none}"*) return 0 ;; esac
	return 1
}

# issue FILE ROLE ID [FLAG...]
issue() {
	file=/out/$1
	shift
	if [ -z "${SANDBUS_CREDS_TTL:-}" ] && lasting "$file"; then
		return
	fi
	sandbus auth issue "$@" ${SANDBUS_CREDS_TTL:+--ttl "$SANDBUS_CREDS_TTL"} --out "$file"
	echo "creds: $file"
}

# config FILE VERB FLAG...: nobody sees half a file
config() {
	file=/out/$1
	shift
	sandbus auth "$@" --insecure-no-tls >"$file.new"
	mv "$file.new" "$file"
}

issue registrar/registrar.creds registrar main
issue registrar/system.creds system registrar
issue harness/harness.creds harness cli
for box in box1 box2 box3 wsbox; do
	issue $box/sandbox.creds sandbox $box
done
# The networks of the project carry what is not encrypted, so every listener is one without TLS. The monitoring pages are for
# the health check in the same container.
config hub/hub.conf server-config --name hub --listen 0.0.0.0:4222 --ws 0.0.0.0:8080 --leaf 0.0.0.0:7422 \
	--monitor 127.0.0.1:8222 --store-dir /data

# The cluster. Its servers show one another a secret: sandboxes reach the port too.
[ -s /keys/cluster.secret ] || secret >/keys/cluster.secret
for n in n1 n2 n3; do
	config $n/hub.conf server-config --name $n --listen 0.0.0.0:4222 --monitor 127.0.0.1:8222 --store-dir /data \
		--cluster 0.0.0.0:6222 --routes n1:6222,n2:6222,n3:6222 --cluster-secret /keys/cluster.secret
done
issue cbox/sandbox.creds sandbox cbox

# A site with a zone of its own.
issue site/site.creds site site --zone site
config site/site.conf site-config --name site --listen 0.0.0.0:4222 --leaf nats-leaf://hub:7422 --site-creds /conf/site.creds \
	--monitor 127.0.0.1:8222
issue sitebox/sandbox.creds sandbox sitebox --zone site

# The gateway is a harness, and the sandbox "relay1" for the worker that attaches there as it.
issue gateway/harness.creds harness gateway
mkdir -p /out/gateway/sandboxes
issue gateway/sandboxes/relay1.creds sandbox relay1
[ -s /out/gateway/tokens ] || printf 'harness agent %s\nsandbox relay1 %s\n' "$(secret)" "$(secret)" >/out/gateway/tokens
