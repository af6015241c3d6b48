"""Floor 4: one file per architecture."""
