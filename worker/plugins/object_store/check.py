"""Checks the object store for sessions' files."""

from __future__ import annotations

import time
from collections.abc import Iterator

from api_client.contract.errors import SettingsError
from api_client.contract.session_files import SessionFilesError
from api_client.contract.settings import Settings, mask_password
from worker.cli.checks.finding import Finding
from worker.plugins.object_store.objects import SHORT_PATIENCE, ObjectStoreClient

#: Largest clock difference of an object store, whose clock has a resolution of seconds.
_FILES_SKEW_SECONDS = 60.0


def object_store(settings: Settings) -> Iterator[Finding]:
    """Check that the object store saves, returns and deletes an object and that its clock is right."""
    if not settings.files:
        return
    where = f"{settings.files}{f' at {mask_password(settings.files_endpoint)}' if settings.files_endpoint else ''}"
    try:
        ahead = ObjectStoreClient(settings, SHORT_PATIENCE).probe_store() - time.time()
    except (SettingsError, SessionFilesError) as error:
        fix = "check the bucket, HELIX_FILES_ENDPOINT and _REGION, and the credentials (AWS_ACCESS_KEY_ID, ...)"
        yield Finding("files", "wrong", f"{where}: {error}", f"{fix}; they need get, put, delete and list")
        return
    yield Finding("files", "ok", f"{where} takes an object, returns and removes it")
    if abs(ahead) > _FILES_SKEW_SECONDS:
        fix = "set both by NTP: `turns data gc` goes by the age of objects, and S3 refuses requests that are 15 min off"
        yield Finding("files clock", "warning", f"differs by {ahead:+.0f} s from this machine's", fix)
