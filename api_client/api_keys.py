"""API keys: their owners, their rights, and the file that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from api_client.contract.errors import KeyNotFound, SettingsError
from api_client.contract.owners import owner_of_name
from api_client.contract.turn import SlotShare
from api_client.private_file import write_private
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

RIGHTS = ("user", "metrics", "operator")
PREFIX = "helix-"
_VERSION = 1
#: Fields that older files lack, with their defaults.
_LATER = {"weight": 1, "at_once": 0, "background": False}
_OWNER = re.compile(r"\b(owner[: ]|key:)([0-9a-f]{32}|[0-9a-f]{12})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key as stored in the keys file: its name, hash, owner and rights, but not its secret.

    Keys of one owner see the same turns. ``right`` is ``user``, ``metrics`` (may also read statistics of all owners) or
    ``operator``. Empty ``models`` allow all models, ``per_minute`` is 0 for the default, and a key that
    ``forwards_users`` acts for the users whom request headers name. SHA-256 suffices for ``hash``, because a key has
    256 random bits.
    """

    name: str
    hash: str
    owner: str
    right: str = "user"
    models: tuple[str, ...] = ()
    per_minute: int = 0
    forwards_users: bool = False
    weight: int = 1
    at_once: int = 0
    background: bool = False
    created_at: str = ""
    revoked_at: str = ""

    @property
    def in_force(self) -> bool:
        """Return True if the key has not been revoked."""
        return not self.revoked_at

    @property
    def share(self) -> SlotShare:
        """Return how many agent slots each owner of this key may use, as a weight and limits."""
        return SlotShare(
            weight=0 if self.weight == 1 else self.weight, at_once=self.at_once, background=self.background
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the key to a dict for the keys file, without newer fields that have default values."""
        return {name: value for name, value in asdict(self).items() if value != _LATER.get(name)}


def hash_key(key: str) -> str:
    """Return the SHA-256 hash of an API key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the API keys stored in the file, or an empty tuple if the file does not exist.

    Raises ``SettingsError`` if the file cannot be read or was not written by ``turns keys``.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            raise ValueError("version")
        return tuple(_read_key(entry) for entry in data["keys"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError([f"HELIX_KEYS_FILE={path}: not a file of keys ({type(error).__name__})"]) from error


def _read_key(entry: dict[str, Any]) -> ApiKey:
    key = ApiKey(**{**entry, "models": tuple(entry["models"])})
    texts = (key.name, key.hash, key.owner, key.revoked_at, *key.models)
    if key.right not in RIGHTS or not all(isinstance(text, str) for text in texts) or len(key.hash) != 64:
        raise ValueError("a key has a field that is wrong")
    if min(key.weight, key.at_once) < 0:
        raise ValueError("a number below 0")
    return replace(
        key,
        per_minute=int(key.per_minute),
        weight=int(key.weight),
        at_once=int(key.at_once),
        forwards_users=bool(key.forwards_users),
        background=bool(key.background),
    )


def make_owner_namer(path: Path) -> Callable[[str], str]:
    """Return a function that replaces owner hashes in a text by the owner names from the keys file.

    Hashes are replaced in ``owner:HASH``, ``owner HASH`` and ``key:HASH``.
    """
    try:
        names = {owner_of_name(key.owner): key.owner for key in read_keys(path)}
    except SettingsError:
        names = {}

    def replace_hash(found: re.Match[str]) -> str:
        return found[1] + next((name for known, name in names.items() if known.startswith(found[2])), found[2])

    return lambda text: _OWNER.sub(replace_hash, text)


def read_sound_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the API keys in the file. Raises ``SettingsError`` if the file is broken or a key's rights conflict."""
    keys = read_keys(path)
    problems = [(key.name, problem) for key in keys if (problem := explain_contradiction(key))]
    if problems:
        fix = "revoke it with `turns keys revoke`"
        raise SettingsError([f"HELIX_KEYS_FILE={path}: key {name!r}: {problem}; {fix}" for name, problem in problems])
    return keys


def explain_contradiction(key: ApiKey) -> str:
    """Return why the rights of an API key contradict each other, or an empty string if they are consistent."""
    if key.right == "operator" and key.forwards_users and key.in_force:
        return "an operator's key cannot speak for users: each of them would see and decide everybody's turns"
    return ""


def add_key(path: Path, key: ApiKey) -> str:
    """Add a new key to the keys file and return its secret, which cannot be recovered later.

    Raises ``SettingsError`` if the name is taken, the key contradicts itself, or the file is broken.
    """
    if problem := explain_contradiction(key):
        raise SettingsError([problem])
    secret = PREFIX + secrets.token_urlsafe(32)
    with _edit_keys(path) as keys:
        if any(other.name == key.name and other.in_force for other in keys):
            raise SettingsError([f"there is a key {key.name!r} already; revoke it first, or take another name"])
        keys.append(replace(key, hash=hash_key(secret), created_at=_now()))
    return secret


def revoke_key(path: Path, name: str) -> None:
    """Mark the valid key with this name as revoked in the keys file.

    Raises ``KeyNotFound`` if no valid key has this name, ``SettingsError`` if the file is broken.
    """
    with _edit_keys(path) as keys:
        for place, key in enumerate(keys):
            if key.name == name and key.in_force:
                keys[place] = replace(key, revoked_at=_now())
                return
        raise KeyNotFound(name)


@contextlib.contextmanager
def _edit_keys(path: Path) -> Iterator[list[ApiKey]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = list(read_keys(path))
        yield keys
        text = json.dumps({"version": _VERSION, "keys": [key.to_dict() for key in keys]}, indent=2)
        write_private(path, f"{text}\n".encode())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ApiKeyring:
    """Provides the valid API keys to a running relay and reads the keys file again when the file changes.

    Raises ``SettingsError`` for a file that is broken at the start; one that breaks later is logged and ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._read_stamp()
        self._keys = self._read_valid_keys()

    @property
    def requires_key(self) -> bool:
        """Return True if requests need an API key, which is the case once the keys file exists."""
        return self._read_stamp() is not None

    def find_key(self, key_hash: str) -> ApiKey | None:
        """Return the valid API key with this hash, or None. Reads the keys file again if it has changed."""
        stamp = self._read_stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._keys = self._read_valid_keys()
                log.info("keys.read", keys=len(self._keys))
            except SettingsError as error:
                log.error("keys.broken", problem=error.problems[0])
        return self._keys.get(key_hash)

    def _read_valid_keys(self) -> dict[str, ApiKey]:
        return {key.hash: key for key in reversed(read_sound_keys(self._path)) if key.in_force}

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def make_token(path: Path) -> str:
    """Return the operator's token of this installation, creating its file if necessary.

    Safe for concurrent processes. Raises ``OSError`` if the token can be neither read nor created.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not read_token(path):
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{PREFIX}local-{secrets.token_urlsafe(32)}\n")
        try:
            os.link(draft, path)  # unlike a rename, a link never replaces a file that another process has just created
        except FileExistsError:
            if not read_token(path):  # broken or empty
                draft.replace(path)
        draft.unlink(missing_ok=True)
    path.chmod(0o600)
    return read_token(path)


def read_token(path: Path) -> str:
    """Return the operator's token from the file, or an empty string if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def token_hash(path: Path) -> str:
    """Return the hash of the operator's token in the file, or an empty string if there is none."""
    token = read_token(path)
    return hash_key(token) if token else ""
