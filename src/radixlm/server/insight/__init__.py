"""The server's records of requests: usage, metrics, advice, notices, traces."""
