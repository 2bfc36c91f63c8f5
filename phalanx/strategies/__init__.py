"""Strategies: devices, layouts and a view, as small values; what they do stands in the rooms below."""
