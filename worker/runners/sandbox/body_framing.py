"""Find the end of a response body in the bytes of its connection (RFC 9112, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_LONGEST_SIZE = 16_384


class BrokenFraming(ConnectionError):
    """Raised when the framing of an HTTP response body is malformed."""


class BodyFraming:
    """Finds the end of an HTTP response body while the response arrives."""

    def __init__(self, headers: Mapping[bytes, bytes], *, bodyless: bool) -> None:
        self._chunked = headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        length = headers.get(b"content-length")
        #: Bytes left of the body or of the current chunk; None: until the connection closes.
        self._left: int | None = 0 if self._chunked or bodyless else int(length) if length else None
        self._rest, self._trailers = b"", False
        self.over = bodyless or (self._left == 0 and not self._chunked)
        #: True if bytes follow the end of the body.
        self.surplus = False

    @property
    def until_closed(self) -> bool:
        """Return whether the body ends only when the connection is closed."""
        return self._left is None

    def read_body(self, raw: bytes) -> bytes:
        """Return the bytes of the body in a raw piece of the response. Raises ``BrokenFraming``."""
        if self._chunked:
            return b"".join(self._read_chunks(raw))
        if self._left is None:
            return raw
        self.surplus = len(raw) > self._left
        piece = raw[: self._left]
        self._left -= len(piece)
        self.over = not self._left
        return piece

    def _read_chunks(self, raw: bytes) -> Iterable[bytes]:
        data, at = self._rest + raw, 0
        self._rest = b""
        while not self.over and at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                yield piece
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) > _LONGEST_SIZE:
                    raise BrokenFraming("a chunk's size is too long")
                return
            line, at = data[at:end].strip(), end + 1
            if self._trailers:
                self.over = not line
            elif line:
                try:
                    self._left = int(line.partition(b";")[0], 16)
                except ValueError:
                    self._left = -1
                if self._left < 0:
                    raise BrokenFraming("a chunk has no size")
                self._trailers = not self._left
        self.surplus = at < len(data)
