"""Floor 7: workloads, reports, random checkpoints."""

from radixlm.bench.checkpoints import SHAPES, write_random_checkpoint

__all__ = ["SHAPES", "write_random_checkpoint"]
