"""Floor 2: who runs next, with how many tokens; no torch."""
