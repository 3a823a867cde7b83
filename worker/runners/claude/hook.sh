#!/bin/sh
# ADR-036's session-end hook, repaired: `set -- EVENT DIRECTORY; . hook.sh`, registered for each run by the runner.
# It leaves a mark that names the run: its first line is the run's mark, the rest is what the CLI gave the hook.
# The folder is absolute: hooks run in whatever folder the agent's shell is in. It runs at each message's end, so it
# starts two programs and no second shell.
set -eu
umask 077
export LC_ALL=C
{ printf '%s\n' "${HELIX_AGENT_MARK:-}"; cat; } >"$2/.$1.$$"
# A helper's failure says nothing of the agent's end. Inside a JSON text each quote is escaped, so this is the field.
if [ "$1" = StopFailure ] && grep -q '"agent_id" *: *"' "$2/.$1.$$"; then exec rm -f "$2/.$1.$$"; fi
exec mv -f "$2/.$1.$$" "$2/$1"
