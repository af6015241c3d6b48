"""Bodies of requests, and the conversations that they hold, for all APIs."""
