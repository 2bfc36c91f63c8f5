"""Manifests: the same script as a job of a cluster's own scheduler, as text to read and submit."""
