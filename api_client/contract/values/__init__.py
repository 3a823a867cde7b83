"""The values of settings: from text to value, addresses of stores, keeping secrets out of sight."""
