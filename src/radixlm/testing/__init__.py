"""Helpers of tests and benchmarks, and of users: engines without a model, random checkpoints."""
