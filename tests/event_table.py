"""The table of all kinds of events, as docs/events.md has it."""

from api_client.contract.event_kinds import LogReset
from api_client.contract.events import _CLASSES, _WIRES

#: Kind -> description for people.
KINDS = {
    name: f"{kind.__doc__} data: {', '.join(wire for wire, *_ in _WIRES[name])}".replace("``", "`")
    for name, kind in _CLASSES.items()
    if kind is not LogReset
}
