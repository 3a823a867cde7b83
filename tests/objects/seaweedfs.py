"""SeaweedFS, a real S3-compatible server: one process, one volume on one disk."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.ports import free_port

_WEED = Path(sys.executable).with_name("weed")
_BUCKET = "sessions"
KEY, SECRET, REGION = "helix", "secret", "us-east-1"
#: Who may only read.
READER = "reader"
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
_PATIENCE = 60.0


@dataclass(frozen=True)
class ObjectServer:
    """A server that runs: its address, and its process."""

    url: str
    process: subprocess.Popen[bytes]

    @property
    def files(self) -> str:
        """As HELIX_FILES names its bucket."""
        return f"s3://{_BUCKET}/helix"

    @property
    def environment(self) -> dict[str, str]:
        """Its credentials."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}


@contextmanager
def seaweedfs(folder: Path, address: str = "127.0.0.1") -> Iterator[ObjectServer]:
    """A server with an empty bucket, whose disk and settings are in ``folder``."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    logins = [(KEY, ["Admin", "Read", "Write", "List"]), (READER, ["Read", "List"])]
    known = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": actions}
        for name, actions in logins
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": known}))
    ports = {each: free_port() for name in _PORTS for each in (name, f"{name}.grpc")}
    command: list[str | Path] = [_WEED, "server", f"-dir={disk}", f"-ip={address}", f"-ip.bind={address}"]
    command += [
        "-s3",
        f"-s3.config={folder}/s3.json",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
    ]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=0", *(f"-{name}={port}" for name, port in ports.items())]
    with tempfile.TemporaryDirectory(prefix="weed-") as short, (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"-filer.localSocket={short}/filer"], stdout=log, stderr=log)
        try:
            server = ObjectServer(f"http://{address}:{ports['s3.port']}", process)
            _make_bucket(server)
            yield server
        finally:
            process.kill()
            process.wait()


def _make_bucket(server: ObjectServer) -> None:
    """Make the bucket: the server does so with the first object of somebody who may."""
    service = S3Store(
        _BUCKET,
        endpoint=server.url,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region=REGION,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            obstore.put(service, "first", b"")
        except (OSError, obstore.exceptions.BaseError):
            if time.monotonic() > until or server.process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return
