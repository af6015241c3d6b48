"""Floor 5: the loop; no torch."""
