"""Floor 3: attention over the KV pool, planned once per step."""
