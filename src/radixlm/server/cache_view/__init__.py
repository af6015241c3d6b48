"""What the radix tree holds, for people and programs that look at it: docs/cache-view.md."""
