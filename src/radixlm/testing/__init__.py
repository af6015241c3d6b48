"""What tests use, and users may too: a runner without a model, checkpoints made at random."""
