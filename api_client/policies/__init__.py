"""Policy files on the web side: read from disk, applied to requests, kept in the store."""
