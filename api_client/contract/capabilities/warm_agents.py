"""Catalogue entries for agents that stay alive between messages."""

from api_client.contract.counter_declaration import CounterDeclaration

COUNTERS = {
    "time.start": CounterDeclaration(
        meaning="From asking an agent until its process takes the message: warm (kept), spare (started ahead) or cold.",
        labels=("start",),
        values=("warm", "spare", "cold"),
    )
}
FAILPOINTS = {
    "message.moved": "kept agent: the files of its message are moved, the marks are not",
    "spare.moved": "spare: its folder is the session's, which its sandbox does not show yet",
    "spare.shown": "spare: its sandbox shows the session, its process has not been told",
}
