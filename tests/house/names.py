"""File names that two rooms use, and the conventions by which they may (docs/ARCHITECTURE.md, How files are named)."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

#: Rooms that show, serve or check the resources of other rooms: a file bears the name of its resource.
_SHOWING = (
    "api_client/resources",
    "api_client/setting_checks",
    "api_client/web/pages",
    "api_client/web/routes",
    "worker/cli",
)
#: Rooms of plug-ins: a file bears the name of its rule, gate or validator.
_PLUGINS = ("worker/enforcement/rules", "worker/enforcement/validators", "worker/verification/gates")
#: The contract declares a noun; a room that works with it may bear the same name.
_CONTRACT = "api_client/contract"
#: Names that mean the same in each room that has one.
EVERYWHERE = frozenset({"__init__.py", "agent.py", "base.py", "codes.py", "errors.py", "registry.py", "runner.py"})
#: What relay and worker each have one of.
EACH_SIDE = frozenset({"app.py", "store.py"})


def repeated(paths: Iterable[PurePosixPath]) -> tuple[dict[str, list[str]], int]:
    """The names that two rooms use beyond the conventions, with those rooms; and how many names conventions explain."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        rooms[path.name].append(str(path.parent))
    twice = {name: found for name, found in rooms.items() if len(found) > 1 and name != "__init__.py"}
    beyond = {name: found for name, found in twice.items() if not _explained(name, found)}
    return beyond, len(twice) - len(beyond)


def _explained(name: str, rooms: list[str]) -> bool:
    if name in EVERYWHERE:
        return True
    working = [room for room in rooms if not room.startswith((*_SHOWING, *_PLUGINS, _CONTRACT))]
    if name in EACH_SIDE:
        return all(sum(room.startswith(side) for room in working) <= 1 for side in ("api_client", "worker"))
    return len(working) <= 1 and sum(room.startswith(_CONTRACT) for room in rooms) <= 1
