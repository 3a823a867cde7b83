"""Which folders of the product may import which: ``allowed.toml``, and what breaks it.

Everybody may import the contract, and everybody outside the core the core; what else a folder imports is listed.
The table has no circle: it is an order of the folders.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.house.structure import Arrows, knots

_FILE = Path(__file__).with_name("allowed.toml")


def _below(folder: str, tops: tuple[str, ...]) -> bool:
    return any(folder == top or folder.startswith(f"{top}/") for top in tops)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The table. Folders by their path below the root.

    Attributes:
        contract, core, faces: the tops of these rooms; a face inside the core's folder is none of the core.
        may: what each folder may import besides.
    """

    contract: tuple[str, ...]
    core: tuple[str, ...]
    faces: tuple[str, ...]
    may: Mapping[str, tuple[str, ...]]

    def is_core(self, folder: str) -> bool:
        """Whether everybody may import it."""
        return _below(folder, self.core) and not _below(folder, self.faces)

    def allows(self, folder: str, other: str) -> bool:
        """Whether a folder may import another one."""
        if _below(other, self.contract) and not _below(folder, self.contract):
            return True
        return (self.is_core(other) and not self.is_core(folder)) or other in self.may.get(folder, ())

    def problems(self, found: Arrows) -> Iterator[str]:
        """What is wrong with these arrows, and with the table itself."""
        for folder, others in sorted(found.items()):
            for other in sorted(others):
                if not self.allows(folder, other):
                    yield f"{folder} may not import {other}"
        folders = {*found, *(each for others in found.values() for each in others)}
        listed = {*self.may, *(each for others in self.may.values() for each in others)}
        yield from (f"is no folder, take it off: {folder}" for folder in sorted(listed - folders))
        allowed = {each: {other for other in folders - {each} if self.allows(each, other)} for each in folders}
        yield from (f"the table allows a circle: {', '.join(sorted(knot))}" for knot in knots(allowed))


def table(file: Path = _FILE) -> Allowed:
    """The table of a file."""
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    rooms = {name: tuple(read[name]) for name in ("contract", "core", "faces")}
    return Allowed(**rooms, may={name: tuple(others) for name, others in read["may"].items()})
