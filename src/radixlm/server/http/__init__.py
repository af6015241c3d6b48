"""HTTP itself: limits, keys, errors, bodies, streams, the log."""
