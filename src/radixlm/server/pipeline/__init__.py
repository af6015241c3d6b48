"""One request into the engine and its answer out, for all APIs."""
