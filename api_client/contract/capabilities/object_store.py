"""Catalogue entries for session files in an object store."""

FAILPOINTS = {
    "files.restored": "any link: the session's folder is what its snapshot says, nothing done yet",
    "files.uploaded": "any link: the session's files are uploaded, no move or seal says so",
}
PLUGINS = {"session_files": {"s3": "object_store"}, "checks": {"object-store": "object_store"}}
