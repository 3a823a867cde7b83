#!/bin/sh
# Make every secret of compose.yaml that is not there yet, one file each, in ./secrets (or the folder named).
set -eu
cd "$(dirname "$0")"
folder=${1:-secrets}
host=${2:-broker:6379}
mkdir -p "$folder"
chmod 700 "$folder"  # the files themselves are read by the containers' users

random() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
make() { [ -s "$folder/$1" ] || { printf '%s\n' "$2" > "$folder/$1"; echo "made $folder/$1"; }; }

for role in relay worker flower operator; do make "${role}_url" "redis://$role:$(random)@$host/0"; done
make api_keys "$(random)"
# Open WebUI's key is one of HELIX_FORWARDING_KEYS: it speaks for each of its users. Before it was a copy of api_keys, and all
# of them were one owner.
if [ -s "$folder/webui_key" ] && [ "$(cat "$folder/webui_key")" = "$(cat "$folder/api_keys")" ]; then
  rm "$folder/webui_key"
  echo "$folder/webui_key was the key in api_keys: each of Open WebUI's users is an owner from now on"
fi
make webui_key "$(random)"
make flower_login "turns:$(random)"
make webui_secret "$(random)"
make grafana_password "$(random)"
# Prometheus' key is made by the running relay: docker compose exec web turns keys create prometheus --right metrics
make metrics_key "put-the-key-here"
