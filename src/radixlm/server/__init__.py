"""Floor 7: HTTP."""
