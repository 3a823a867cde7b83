"""Catalogue entries for agents that stay alive between messages."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "time.start": CounterDeclaration(
        meaning="From asking an agent until its process takes the message: warm (kept), spare (started ahead) or cold.",
        labels=("start",),
        values=("warm", "spare", "cold"),
    )
}
