"""Compiling for this processor: vectors, strips, threads. Below attention and layers."""
