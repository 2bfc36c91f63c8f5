"""The loops: fit, evaluate, predict and their one-batch forms."""
