"""The radix tree: nodes, eviction order, ghosts, observers, free slots and their law."""
