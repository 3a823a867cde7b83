"""Archives made by somebody who means harm, or spoilt on their way: each is refused, and the place stays as it was."""

import gzip
import hashlib
import io
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from tests.fault.staged import Seen
from tests.installation import environ_of, turns

#: A dump without keys, as Redis 7.0 writes it: each server reads it.
DUMP = b"REDIS0010\xff" + bytes(8)
#: A refusal needs less memory than this, in KiB, whatever the archive unpacks to.
MOST_MEMORY = 300 * 1024
_FACTS = {"at": 1.0, "namespace": "forged", "root": "/", "settings": []}


@dataclass
class Forged:
    """An archive in which everything fits together, whatever it holds."""

    files: dict[str, bytes] = field(default_factory=lambda: {"store.rdb": DUMP})
    modes: dict[str, int] = field(default_factory=dict)
    members: list[tarfile.TarInfo] = field(default_factory=list)
    facts: Any = field(default_factory=lambda: dict(_FACTS))
    entry: dict[str, Any] = field(default_factory=dict)
    manifest: bytes | None = None
    zeros: tuple[bytes, int] = (b"", 0)

    def write(self, path: Path) -> None:
        """Write it with a manifest and a checksum that are right."""
        entries = {}
        with gzip.open(path, "wb", compresslevel=1) as packed:
            self._bomb(packed)
            with tarfile.open(fileobj=packed, mode="w|") as tar:
                for member in self.members:
                    tar.addfile(member)
                    if member.isdir():
                        entries[member.name] = {"sha256": "", "size": 0, "mode": member.mode, "mtime_ns": 0}
                for name, content in self.files.items():
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(content), self.modes.get(name, 0o600)
                    tar.addfile(info, io.BytesIO(content))
                    entries[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
                    entries[name] |= {"mode": info.mode, "mtime_ns": 0, **self.entry}
                data = {"format": "helix-turns.backup/1", "facts": self.facts, "entries": entries}
                text = json.dumps(data).encode() if self.manifest is None else self.manifest
                for name, content in (
                    ("manifest.json", text),
                    ("manifest.sha256", hashlib.sha256(text).hexdigest().encode()),
                ):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))

    def _bomb(self, packed: gzip.GzipFile) -> None:
        """A header that says that so many bytes follow, and these: never in our own memory."""
        kind, size = self.zeros
        if kind:
            info = tarfile.TarInfo("manifest.json")
            info.type, info.size = kind, size
            packed.write(info.tobuf(tarfile.GNU_FORMAT))
            for _ in range(size // 2**20):
                packed.write(bytes(2**20))


def _file(name: str) -> Forged:
    return Forged(files={"store.rdb": DUMP, name: b"owned"}, modes={name: 0o4755})


def _member(name: str, kind: bytes, link: str = "") -> Forged:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o777
    return Forged(files={"store.rdb": DUMP, f"{name}/owned": b"x"}, members=[info])


def hostile(outside: Path, size: int) -> dict[str, Forged]:
    """Archives by what is wrong with them; ``outside`` is a folder that they may not touch, ``size`` a bomb's bytes."""
    names = [f"root/{outside}/owned", f"{outside}/owned", "root/../outside/owned", "root/a/../../outside/owned", ".."]
    names += ["state/../../outside/owned", "root//owned", "root/", "root/a//b", "root/a/./b", "owned", "other/owned"]
    names += ["state/restoring", "state/broker/appendonlydir/owned", f"root/{'x' * 300}", "root/a/"]
    sparse = tarfile.TarInfo("root/sparse")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s"}
    found = {f"a file {name!r}": _file(name) for name in names} | {
        "a folder elsewhere": _member(f"root/{outside}", tarfile.DIRTYPE),
        "a link": _member("root/link", tarfile.SYMTYPE, str(outside)),
        "a hard link": _member("root/link", tarfile.LNKTYPE, "/etc/passwd"),
        "a device": _member("root/null", tarfile.CHRTYPE),
        "a pipe": _member("root/pipe", tarfile.FIFOTYPE),
        "a file with holes": Forged(members=[sparse]),
        "a file below a file": Forged(files={"store.rdb": DUMP, "root/a": b"", "root/a/b": b""}),
        "two files for one place": Forged(files={"store.rdb": DUMP, "root/./a": b"", "root/a": b""}),
        "a manifest of zeros": Forged(zeros=(tarfile.REGTYPE, size)),
        "a manifest of brackets": Forged(manifest=b"[" * 100_000),
        "a long name of zeros": Forged(zeros=(tarfile.GNUTYPE_LONGNAME, size // 4)),
        "a long header of zeros": Forged(zeros=(tarfile.XHDTYPE, size // 4)),
        "more than the disk holds": Forged(entry={"size": 2**62}),
        "another namespace": Forged(facts=_FACTS | {"namespace": "other"}),
        "a dump of an unknown server": Forged(files={"store.rdb": b"REDIS0099\xff" + bytes(8)}),
        "no dump": Forged(files={"store.rdb": b""}),
    }
    for key, value in (("mtime_ns", 10**30), ("mtime_ns", -1), ("mode", "777"), ("size", 0.5), ("sha256", None)):
        found[f"{key} {value!r}"] = Forged(entry={key: value})
    for facts in (None, [], {}, {"namespace": "forged"}, {"namespace": "forged", "settings": [None]}):
        found[f"facts {facts!r}"] = Forged(facts=facts)
    for manifest in (b"", b"{}", b"[]", b"\xff", b'{"format": "helix-turns.backup/1"}'):
        found[f"manifest {manifest!r}"] = Forged(manifest=manifest)
    return found


def spoilt(seed: int, number: int) -> Iterator[bytes]:
    """A good archive with one bit turned, cut off, or with bytes behind it."""
    with tempfile.TemporaryDirectory() as folder:
        Forged(files={"store.rdb": DUMP, "root/a/b": bytes(1000), "keys.json": b"{}"}).write(Path(folder) / "good")
        good = (Path(folder) / "good").read_bytes()
    rng = random.Random(seed)
    for turn in range(number):
        place = rng.randrange(20, len(good))  # what comes before is no content: time, system and name of the packing
        kinds = (good[:place], good[:place] + bytes([good[place] ^ 1 << rng.randrange(8)]) + good[place + 1 :])
        yield kinds[turn % 2]


def tree(*folders: Path) -> dict[str, tuple[object, ...]]:
    """Everything below folders: kind, mode, time, size, content."""
    found: dict[str, tuple[object, ...]] = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            facts = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (facts.st_mode, facts.st_mtime_ns, facts.st_uid, facts.st_nlink, content)
    return found


#: A process between pytest and the command: a child begins with the memory of the process that started it.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def restored(settings: Settings, archive: Path) -> tuple[int, str, int]:
    """Run ``turns data restore``: exit code, what it said, and the most memory it took, in KiB."""
    command = [sys.executable, "-S", "-c", _MEASURED, *turns("data", "restore", str(archive))]
    ran = subprocess.run(command, env=environ_of(settings), capture_output=True, check=True)
    code, memory = map(int, ran.stdout.split())
    return code, ran.stderr.decode(errors="replace"), memory


def places(folder: Path) -> Iterator[tuple[Settings, Callable[[], dict[str, tuple[object, ...]]]]]:
    """Roots to restore into, each with a look at it and at its neighbours: an empty one, and one that was in use."""
    for name in ("empty", "used"):
        root, outside = folder / name, folder / "outside"
        root.mkdir()
        outside.mkdir(exist_ok=True)
        (outside / "mine").write_text("mine")
        if name == "used":
            (root / ".helix").mkdir(mode=0o700)
            (root / ".helix" / "helix.toml").write_text("")
            (root / "notes").write_text("mine")
        yield Settings(root=root, namespace="forged"), partial(tree, root, outside)


def stage(long: bool) -> Seen:
    """Try each archive on each place."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        tried, wrong, most, told = 0, 0, 0, []
        archive = folder / "archive"
        for settings, look in places(folder):
            forged = hostile(folder / "outside", 1536 * 2**20 if long else 256 * 2**20)
            chosen = list(forged.items()) if long else [*forged.items()][settings.root.name == "used" :: 4]
            writers: list[tuple[str, Callable[[Path], object]]] = [(what, each.write) for what, each in chosen]
            writers += [
                (f"spoilt {number}", lambda path, content=content: path.write_bytes(content))
                for number, content in enumerate(spoilt(1, 40 if long else 4))
            ]
            for what, write in writers:
                write(archive)
                before = look()
                code, said, memory = restored(settings, archive)
                tried, most = tried + 1, max(most, memory)
                one_line = said.startswith("turns: ") and said.count("\n") == 1
                if not (code == 2 and one_line and look() == before and memory < MOST_MEMORY):
                    wrong += 1
                    told.append(f"{what}: {code} {said[-200:]!r} {memory // 1024} MiB {look() == before}")
        return Seen(tried, "archives", wrong, "; ".join([f"at most {most // 1024} MiB", *told])[:2000])
