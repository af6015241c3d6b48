"""Floor 7: workloads, reports, random checkpoints."""
