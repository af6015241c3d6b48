"""Replicas on Ray Serve: `radixlm deploy`, and `radixlm.ray:app` for clusters."""

from radixlm.ray.deployment import app as app
