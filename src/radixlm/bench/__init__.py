"""Floor 7: workloads, reports, random checkpoints."""

from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

__all__ = ["SHAPES", "write_random_checkpoint"]
