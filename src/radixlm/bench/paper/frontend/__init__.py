"""Workloads of the paper as programs in the frontend language, beside the same without it."""
