"""Floor 5: a ScheduledBatch in, sampled tokens out."""
