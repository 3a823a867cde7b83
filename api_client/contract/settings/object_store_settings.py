"""The settings of the object store that keeps the files of sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import parse_web_address


def parse_bucket(value: str) -> str:
    """Check the address of a bucket in an object store, such as ``s3://BUCKET/PREFIX``. It may be empty."""
    parts = urlsplit(value)
    if value and (parts.scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{2,62}", parts.netloc) or parts.query):
        raise ValueError("must look like s3://bucket or s3://bucket/prefix")
    return value


@dataclass(frozen=True, kw_only=True)
class ObjectStoreSettings(SettingsGroup):
    """Settings of the object store that keeps the files of sessions if workers share no folder."""

    files: str = declare_setting(
        "",
        parse_bucket,
        "Object store for the files of sessions, s3://BUCKET/PREFIX; none: HELIX_ROOT, which all workers share then.",
    )
    files_endpoint: str = declare_setting(
        "", parse_web_address, "Address of its S3 service; none: that of AWS in its region."
    )
    files_max_bytes: int = declare_constant(
        256 * 2**20, "Largest session in the object store, in bytes; a turn beyond it fails."
    )
    files_grace_seconds: float = declare_constant(
        86_400.0, "How long `turns data gc` leaves what no session needs in the object store."
    )

    def find_problems(self) -> Iterator[str]:
        """Yield a message if an object store is configured but its library is not installed."""
        yield from super().find_problems()
        if self.files and find_spec("obstore") is None:
            yield 'HELIX_FILES: obstore is not installed; pip install ".[s3]" in the checkout'
