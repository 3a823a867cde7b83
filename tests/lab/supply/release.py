"""``make release``: the wheel of the committed tree, its bill of materials and its provenance, the same every time.

The tree is that of HEAD and the time is its commit's, so what lies about in the checkout changes nothing.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
#: What the wheel runs with in our image; the bill of materials lists it.
LOCK = "compose/requirements.lock"
_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
_LOCAL = "urn:helix-turns:local-build"


def git(*words: str) -> str:
    """What git says of this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def export_tree(folder: Path) -> Path:
    """Write the files of HEAD into a folder."""
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    return tree


def build_wheel(folder: Path, epoch: str) -> Path:
    """Build the wheel of HEAD into a new folder below this one."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        tree, built = export_tree(Path(made)), Path(made, "dist")
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
            cwd=tree,
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
            check=True,
            capture_output=True,
        )
        [wheel] = built.glob("*.whl")
        return wheel.replace(folder / wheel.name)


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def describe_provenance(files: Sequence[Path], commit: str, source: str) -> dict[str, Any]:
    """Return an in-toto statement with SLSA's provenance of these files; nobody has signed it."""
    locks = [{"uri": name, "digest": {"sha256": digest_of(ROOT / name)}} for name in ("requirements.lock", LOCK)]
    server, repository, run = (os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    hosted = f"{server}/{repository}/actions/runs/{run}" if run else ""
    return {
        "_type": _STATEMENT,
        "subject": [{"name": file.name, "digest": {"sha256": digest_of(file)}} for file in files],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:helix-turns:make-release:1",
                "externalParameters": {"source": source, "commit": commit},
                "internalParameters": {"python": "{}.{}.{}".format(*sys.version_info[:3])},
                "resolvedDependencies": [{"uri": source, "digest": {"gitCommit": commit}}, *locks],
            },
            "runDetails": {
                "builder": {"id": f"{server}/{repository}/actions" if hosted else _LOCAL},
                **({"metadata": {"invocationId": hosted}} if hosted else {}),
            },
        },
    }


def write_bill(cyclonedx: str, target: Path, epoch: str) -> None:
    """Write the CycloneDX bill of materials of the image's lock, hashes included."""
    options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--validate", "--sv", "1.6", "--of", "JSON")
    subprocess.run(
        [cyclonedx, "requirements", *options, "-o", str(target), LOCK],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        check=True,
    )


def main(cyclonedx: str, target: Path) -> int:
    """Build twice and write what a release has; exit code 1 when two builds differ."""
    commit, epoch = git("rev-parse", "HEAD"), git("log", "-1", "--format=%ct")
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    wheel = build_wheel(target, epoch)
    with tempfile.TemporaryDirectory() as again:
        second = digest_of(build_wheel(Path(again), epoch))
    if second != digest_of(wheel):
        print(f"two builds of {wheel.name} differ: {digest_of(wheel)}, {second}")
        return 1
    bill = wheel.with_suffix(".cdx.json")
    write_bill(cyclonedx, bill, epoch)
    source = os.environ.get("GITHUB_REPOSITORY", "") or "helix-turns"
    provenance = wheel.with_suffix(".intoto.jsonl")
    provenance.write_text(json.dumps(describe_provenance([wheel, bill], commit, source), sort_keys=True) + "\n")
    for file in (wheel, bill, provenance):
        print(f"{digest_of(file)}  {file.name}")
    if git("status", "--porcelain"):
        print("the checkout has changes: they are not in the release, which is HEAD")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).absolute()))
