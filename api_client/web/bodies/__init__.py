"""Request bodies: from bytes to what is asked, or a clear refusal."""
