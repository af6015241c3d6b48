"""Floor 7: workloads, how they are measured, and the command `radixlm bench`."""
