"""Floor 3: linear layers, norms, rotary positions, embeddings."""
