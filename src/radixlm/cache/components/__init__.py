"""Components: what has slots of its own beside full keys and values (ADR 53)."""
