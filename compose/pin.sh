#!/bin/sh
# Name every image of compose.yaml by digest beside its tag, as the registry has it now, and print the base image's. Needs an
# engine (docker buildx). Run it again to take a newer build of the same tags; read the diff before you commit it.
set -eu
cd "$(dirname "$0")"
file=${1:-compose.yaml}

digest() { docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'; }

for image in $(sed -n 's/^ *image: \([a-z0-9./-]*:[A-Za-z0-9._-]*\)\(@sha256:[0-9a-f]*\)\{0,1\}$/\1/p' "$file" | sort -u); do
  found=$(digest "$image")
  case $found in
    sha256:????????????????????????????????????????????????????????????????) ;;
    *) echo "pin.sh: no digest for $image: $found" >&2; exit 1 ;;
  esac
  sed "s|^\( *image: $image\)\(@sha256:[0-9a-f]*\)\{0,1\}\$|\1@$found|" "$file" > "$file.new"
  mv "$file.new" "$file"
  echo "$image@$found"
done
echo "PYTHON_TAG=3.13-slim-bookworm@$(digest python:3.13-slim-bookworm)  # into .env, for the build"
