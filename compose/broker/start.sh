#!/bin/sh
# Start the broker with one user per role. Each secret is an address, redis://ROLE:PASSWORD@broker:6379/0; the same file
# is what its role connects with, so that a password is in one place.
set -eu
secrets=${SECRETS:-/run/secrets}
directory=${DIRECTORY:-/data}
namespace=${HELIX_NAMESPACE:-helix}
server=${SERVER:-valkey-server}
here=$(dirname "$0")

umask 077
users=$(mktemp "${TMPDIR:-/tmp}/users.XXXXXX")
cp "$here/users.acl" "$users"
for role in relay worker flower operator; do
  password=$(sed -n 's|^rediss\{0,1\}://[^:@/]*:\([A-Za-z0-9._~-]\{16,\}\)@.*|\1|p' "$secrets/${role}_url")
  if [ -z "$password" ]; then
    echo "broker: $secrets/${role}_url must hold redis://$role:PASSWORD@broker:6379/0 (16 letters and digits or more)" >&2
    exit 2
  fi
  sed -i "s|@$role@|$password|" "$users"
done
sed -i "s|@namespace@|$namespace|g; /^#/d" "$users"

# No --save: the append-only file is the truth. noeviction: a full server refuses turns, it forgets none.
exec "$server" --aclfile "$users" --dir "$directory" --save "" --appendonly yes \
  --appendfsync "${APPENDFSYNC:-everysec}" --maxmemory-policy noeviction "$@"
