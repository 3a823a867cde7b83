"""``make image``: the container image without an engine, built twice, with its bill of materials and its provenance.

The base is Debian's own packages (mmdebstrap), the second layer our lock and the wheel of HEAD. The file is an OCI
archive: ``docker load``, ``podman load`` and ``skopeo copy oci-archive:FILE`` take it.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.markers import Marker

from tests.lab.supply.release import LOCK, ROOT, build_wheel, describe_provenance, digest_of, git, write_bill

#: Debian's release, its Python, and the newest C library that wheels may need there.
SUITE, PYTHON, GLIBC = "bookworm", "3.11", 36
_PLATFORMS = ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, GLIBC + 1))]
_SITE = "usr/local/lib/python3.11/dist-packages"
_USER = 10_001
_COMMAND = "#!/usr/bin/python3\nfrom worker.cli import main\n\nmain()\n"
_OCI = "application/vnd.oci.image"


def build_base(target: Path, epoch: str) -> None:
    """Write Debian's essential packages and Python as a tar file; the same packages give the same bytes."""
    packages = "python3,ca-certificates,tzdata"
    command = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={packages}", SUITE, str(target)]
    subprocess.run(command, env={**os.environ, "SOURCE_DATE_EPOCH": epoch}, check=True)


def build_application(folder: Path, base: Path, target: Path, epoch: str) -> None:
    """Write the locked packages, the wheel of HEAD, the command and the volumes' folders as a tar file."""
    site, lock = folder / "root" / _SITE, folder / "requirements.txt"
    lock.write_text(select_requirements((ROOT / LOCK).read_text(), find_python(base)))
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--only-binary=:all:"]
    target_of = ["--python-version", PYTHON, "--implementation", "cp", *(f"--platform={each}" for each in _PLATFORMS)]
    pip = [sys.executable, "-m", "pip", "install", *options, *target_of, "--require-hashes", "--target", str(site)]
    subprocess.run([*pip, "-r", str(lock)], check=True)
    subprocess.run(["rm", "-rf", str(site / "bin")], check=True)  # their first lines name this machine's Python
    with zipfile.ZipFile(build_wheel(folder, epoch)) as wheel:
        wheel.extractall(site)
    command = folder / "root" / "usr" / "local" / "bin" / "turns"
    command.parent.mkdir()
    command.write_text(_COMMAND)
    command.chmod(0o755)
    for name in ("data", "flower", "keys"):
        (folder / "root" / name).mkdir(mode=0o700)
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for file in sorted((folder / "root").rglob("*")):
            name = file.relative_to(folder / "root").as_posix()
            tar.add(file, name, recursive=False, filter=lambda each: _normalise(each, int(epoch)))


def find_python(base: Path) -> str:
    """Return the full version of the base's Python, such as ``3.11.2``."""
    [found] = [each["version"] for each in list_debian_packages(base) if each["name"] == f"python{PYTHON}-minimal"]
    return found.partition("-")[0]


def select_requirements(lock: str, python: str) -> str:
    """Return the entries of a universal lock that this Python on Linux needs, without their markers."""
    machine = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux", "platform_machine": "x86_64"}
    environment = machine | {
        "python_full_version": python,
        "python_version": PYTHON,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    kept = list[str]()
    for entry in re.findall(r"^[^\s#].*\n(?:[ ]+.*\n)*", lock, re.MULTILINE):
        named, _, hashes = entry.partition("\\\n")
        requirement, _, marker = named.partition(";")
        if not marker.strip() or Marker(marker).evaluate(environment):
            kept.append(f"{requirement.strip()} \\\n{hashes}")
    return "".join(kept)


def _normalise(entry: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    owner = _USER if entry.name in {"data", "flower", "keys"} else 0
    entry.uid = entry.gid = owner
    entry.uname = entry.gname = ""
    entry.mtime = epoch
    if not owner:
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def describe_image(layers: list[Path], epoch: str, version: str, commit: str) -> dict[str, Any]:
    """Return the image's configuration, which is the Dockerfile's."""
    created = f"{datetime.fromtimestamp(int(epoch), UTC):%Y-%m-%dT%H:%M:%SZ}"
    labels = {
        "title": "helix-turns",
        "description": "Durable, enforced turns for LLM agents",
        "licenses": "MIT",
        "version": version,
        "revision": commit,
    }
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": f"{_USER}:{_USER}",
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "PYTHONUNBUFFERED=1",
                "PYTHONDONTWRITEBYTECODE=1",
                "HELIX_ROOT=/data",
                "HELIX_SANDBOX=auto",
            ],
            "Cmd": ["turns", "run", "worker"],
            "WorkingDir": "/data",
            "StopSignal": "SIGTERM",
            "Labels": {f"org.opencontainers.image.{name}": value for name, value in labels.items()},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest_of(layer)}" for layer in layers]},
        "history": [{"created": created, "created_by": layer.stem} for layer in layers],
    }


def write_archive(layers: list[Path], config: dict[str, Any], target: Path, version: str) -> None:
    """Write layers and configuration as an OCI archive."""
    blobs = dict[str, bytes]()

    def add(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    packed = [add(gzip.compress(layer.read_bytes(), 6, mtime=0), "layer.v1.tar+gzip") for layer in layers]
    described = add(_to_json(config), "config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": described, "layers": packed}
    named = add(_to_json(manifest), "manifest.v1+json") | {
        "annotations": {"org.opencontainers.image.ref.name": version}
    }
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [named]}
    blobs |= {"index.json": _to_json(index), "oci-layout": _to_json({"imageLayoutVersion": "1.0.0"})}
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(blobs.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))


def _to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def list_debian_packages(base: Path) -> list[dict[str, str]]:
    """Return the Debian packages of the base as components of a bill of materials."""
    with tarfile.open(base) as tar:
        status = tar.extractfile("./var/lib/dpkg/status")
        assert status
        text = status.read().decode()
    found = re.findall(
        r"^Package: (\S+)\n(?:.+\n)*?Architecture: (\S+)\n(?:.+\n)*?Version: (\S+)\n", text, re.MULTILINE
    )
    return [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}",
            "bom-ref": f"deb-{name}-{architecture}",
        }
        for name, architecture, version in found
    ]


def build_image(folder: Path, target: Path, epoch: str) -> Path:
    """Build the image of HEAD in an empty folder and return its base layer."""
    layers = [folder / "base.tar", folder / "application.tar"]
    build_base(layers[0], epoch)
    build_application(folder, layers[0], layers[1], epoch)
    [wheel] = folder.glob("*.whl")
    version = wheel.name.split("-")[1]
    write_archive(layers, describe_image(layers, epoch, version, git("rev-parse", "HEAD")), target, version)
    return layers[0]


def main(cyclonedx: str, target: Path) -> int:
    """Build twice and write image, bill of materials and provenance; exit code 1 when two builds differ."""
    epoch = git("log", "-1", "--format=%ct")
    target.mkdir(parents=True, exist_ok=True)
    image, bill = target / "helix-turns.oci.tar", target / "helix-turns.oci.cdx.json"
    write_bill(cyclonedx, bill, epoch)
    digests = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            base = build_image(Path(folder), image, epoch)
            digests.append(digest_of(image))
            packages = list_debian_packages(base)
    if len({*digests}) > 1:
        print(f"two builds of the image differ: {digests}")
        return 1
    listed = json.loads(bill.read_text())
    listed["components"] += packages
    bill.write_text(json.dumps(listed, indent=2, sort_keys=True) + "\n")
    source = os.environ.get("GITHUB_REPOSITORY", "") or "helix-turns"
    statement = describe_provenance([image, bill], git("rev-parse", "HEAD"), source)
    (target / "helix-turns.oci.intoto.jsonl").write_text(json.dumps(statement, sort_keys=True) + "\n")
    for file in sorted(target.glob("helix-turns.oci.*")):
        print(f"{digest_of(file)}  {file.name}  {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).absolute()))
