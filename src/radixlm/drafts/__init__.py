"""Drafts: tokens that are likely to come next, from what was written before (ADR 60)."""
