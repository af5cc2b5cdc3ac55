"""Files that survive a crash: atomic, checksummed trees of tensors, locks, and fingerprints."""
