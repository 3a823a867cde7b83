#!/bin/sh
# Workers on another host than the relay. Here both "hosts" are this machine; on real ones run each part where its
# comment says, with the same HELIX_* settings and one shared folder (NFS) as HELIX_ROOT.
set -eu
cd "$(dirname "$0")"
HELIX_ROOT=$(mktemp -d) HELIX_LOCALE=en
HELIX_MODELS="invoices=scripted:$PWD/agent.yaml"
export HELIX_ROOT HELIX_LOCALE HELIX_MODELS
trap 'kill $web $worker $broker 2>/dev/null; wait; rm -rf "$HELIX_ROOT"' EXIT
web= worker= broker=

# Host A, the store: your own Redis or Valkey with a password and `appendfsync always`. Here: the embedded one.
turns run broker > "$HELIX_ROOT/broker" & broker=$!
until grep -q REDIS_URL "$HELIX_ROOT/broker"; do kill -0 $broker && sleep 0.1; done
REDIS_URL=$(sed -n 's/^REDIS_URL=//p' "$HELIX_ROOT/broker")
export REDIS_URL

# Host A, the relay: people and programs connect to it.
turns run relay --port "${PORT:-8770}" > "$HELIX_ROOT/web" 2>&1 & web=$!

# Host B, the workers: start this on as many hosts as you need. They take turns from the same store.
HELIX_AGENT_READY_FILE="$HELIX_ROOT/ready" turns run worker > "$HELIX_ROOT/worker" 2>&1 & worker=$!
until [ -e "$HELIX_ROOT/ready" ]; do kill -0 $worker && sleep 0.1; done

# From any host that has REDIS_URL and HELIX_ROOT:
turns submit --model invoices --wait "Where is the invoice?"
