#!/bin/sh
# A client with curl: sh client.sh "Where is the invoice?"
# The same Idempotency-Key submits one turn, however often the request is repeated.
set -eu
url=${HELIX_URL:-http://127.0.0.1:8765}
auth="Authorization: Bearer ${HELIX_KEY:-none}"

turn=$(curl -sS --fail-with-body -X POST "$url/v1/turns" -H "$auth" -H "Content-Type: application/json" \
  -H "Idempotency-Key: invoice-$$" -d "{\"model\": \"invoices\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}" |
  sed 's/.*"turn_id": *"\([^"]*\)".*/\1/')
echo "turn $turn"

# The events, one per line, until the turn has finished.
curl -sSN -H "$auth" "$url/v1/turns/$turn/events" | sed -n 's/^data: //p'
