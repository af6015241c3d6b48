"""Floor 5: a ScheduledBatch in, sampled tokens out."""

from radixlm.runner.model_runner import Model, ModelRunner

__all__ = ["Model", "ModelRunner"]
