"""Eviction policies by name, and the learned one."""
