"""Floor 1: which slots hold which tokens; no torch."""
