"""Clusters: who the workers are, from the environment that a launcher or a person has set; never JAX."""

from phalanx.cluster.resolution import Finding, Resolution, explain, resolve
from phalanx.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "Finding", "Resolution", "explain", "resolve"]
