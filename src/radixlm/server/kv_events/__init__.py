"""Events of what the cache holds, published to routers over ZMQ: docs/kv-events.md."""
