"""Catalogue entries for session files in an object store."""

PLUGINS = {"session_files": {"s3": "object_store"}, "checks": {"object-store": "object_store"}}
