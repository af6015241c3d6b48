"""RadixLM: shared prefixes are computed once, read once, and never a mystery."""
