"""The first meeting of the workers."""
