"""Catalogue entries for session files in an object store."""

FAILPOINTS = {
    "files.restored": "any task: the session's folder is what its snapshot says, nothing done yet",
    "files.uploaded": "any task: the session's files are uploaded, no transition or seal says so",
}
PLUGINS = {"session_files": {"s3": "object_store"}, "checks": {"object-store": "object_store"}}
