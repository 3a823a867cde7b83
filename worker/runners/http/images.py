"""Attaches the images named in messages to a request for an OpenAI-compatible service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from api_client.contract.image import MAX_IMAGE_BYTES, MAX_IMAGES, find_image_names, format_data_url
from worker.files.safe_io import open_folder, read_file


def attach_images(messages: Sequence[dict[str, str]], workdir: Path) -> list[dict[str, Any]]:
    """Attach to each user message the images that it names, newest first, up to ``MAX_IMAGES``. Return the messages."""
    left, found = MAX_IMAGES, list[dict[str, Any]]()
    for message in reversed(messages):
        names = find_image_names(message.get("content", "")) if message.get("role") == "user" else []
        urls = _image_urls(names[:left], workdir)
        left -= len(urls)
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        text = {"type": "text", "text": message.get("content", "")}
        found.append({**message, "content": [text, *parts]} if parts else dict(message))
    return found[::-1]


def _image_urls(names: list[str], workdir: Path) -> list[str]:
    urls: list[str] = []
    for name in names:
        try:
            with open_folder(workdir) as session, open_folder("input", session) as folder:
                urls.append(format_data_url(name, read_file(name, folder, MAX_IMAGE_BYTES)))
        except OSError:
            continue
    return urls
