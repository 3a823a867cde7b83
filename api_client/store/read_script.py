"""Lua scripts that only read."""

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError


class ReadScript:
    """A read-only Lua script, called with its keys and arguments.

    ``EVALSHA_RO`` works while writes are refused or have to wait; ``EVALSHA`` of an unknown script counts as a write.
    """

    def __init__(self, redis: Any, file: Path) -> None:
        self._redis, self._source = redis, file.read_text(encoding="utf-8")
        self._digest = sha1(self._source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run the script and return its reply. Raises ``RedisError``, ``OSError``."""
        try:
            return await self._redis.evalsha_ro(self._digest, len(keys), *keys, *args)
        except NoScriptError:
            return await self._redis.eval_ro(self._source, len(keys), *keys, *args)
