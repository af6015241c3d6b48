"""Floor 3: where the bytes of keys and values lie."""
