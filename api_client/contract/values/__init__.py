"""The values of settings: from text to value, addresses and shards of stores, keeping secrets out of sight."""
