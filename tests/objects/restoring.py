"""How long it takes to bring a session of 5 MB to a host that never saw it: ``python -m tests.objects.restoring``."""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from api_client.contract.settings import Settings
from tests.objects.seaweedfs import seaweedfs
from worker.files.safe_io import open_folder
from worker.files.session_fence import open_fenced
from worker.plugins.object_store.folder import pack_folder, restore_folder
from worker.plugins.object_store.objects import ObjectStoreClient, load_snapshot
from worker.plugins.object_store.snapshots import Snapshot

_WORDS = [f"word{number}" for number in range(997)]


def session(folder: Path) -> int:
    """A session like that of a long chat, in bytes: a transcript of 4 MB, and 200 files of 5 kB in 40 deliveries."""
    (folder / "agent").mkdir(parents=True)
    lines = (f'{{"type":"user","text":"{" ".join(_WORDS[at % 97 : at % 97 + 60])} {at}"}}' for at in range(8000))
    (folder / "agent" / "transcript.jsonl").write_text("\n".join(lines))
    for number in range(200):
        output = folder / "attempts" / f"turn-{number // 5}-1-1" / "output"
        output.mkdir(parents=True, exist_ok=True)
        (output / f"file{number}.md").write_bytes(os.urandom(2000).hex().encode() + b"x" * 1000)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.objects.restoring", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds

    with tempfile.TemporaryDirectory() as name, seaweedfs(Path(name) / "objects") as server:
        os.environ |= server.environment
        top = Path(name)
        objects = ObjectStoreClient(Settings(files=server.files, files_endpoint=server.url))
        size = session(top / "a")
        with open_folder(top / "a") as folder:
            made = pack_folder(top / "a", folder, "s/one", Snapshot(), most_bytes=2**30, grace=60)
        assert made is not None
        snapshot, content = made
        objects.put_object("s/one", content)
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            found = load_snapshot(objects, str(snapshot.pointer))
            with open_fenced(top / "b") as holder:
                holder.revoke_earlier_holders()
                restore_folder(holder, found.manifest, objects)
            took.append(time.perf_counter() - began)
            shutil.rmtree(top / "b")
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99) - 1]
    print(
        f"{size / 1e6:.1f} MB, {len(content) / 1e6:.1f} MB in its object: p50 {p50:.3f} s, p99 {p99:.3f} s of {rounds}"
    )


if __name__ == "__main__":
    main()
