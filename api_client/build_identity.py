"""Identify the installed code: its version, and a digest of its files, because commits of one version differ."""

import hashlib
from functools import cache
from pathlib import Path

import api_client

_CODE = {".py", ".lua", ".toml", ".j2"}


@cache
def build_identity() -> str:
    """Return the version and a digest of the installed code, such as ``0.1.0+3f9c2ab``."""
    digest, own = hashlib.sha256(), Path(__file__).parent
    for path in sorted(path for top in (own, own.parent / "worker") for path in top.rglob("*") if path.suffix in _CODE):
        digest.update(str(path.relative_to(own.parent)).encode() + b"\0" + path.read_bytes())
    return f"{api_client.__version__}+{digest.hexdigest()[:7]}"
