"""What the cache holds, told to routers over ZMQ: docs/kv-events.md."""
