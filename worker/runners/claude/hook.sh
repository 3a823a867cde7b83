#!/bin/sh
# ADR-036's session-end hook, repaired: `sh hook.sh EVENT DIRECTORY`, registered for each run by the runner.
# It leaves a mark that names the run: its first line is the run's mark, the rest is what the CLI gave the hook.
# The folder is absolute: hooks run in whatever folder the agent's shell is in.
set -eu
umask 077
temporary=$(mktemp "$2/.$1.XXXXXX")
{ printf '%s\n' "${HELIX_AGENT_MARK:-}"; cat; } >"$temporary"
mv -f "$temporary" "$2/$1"
