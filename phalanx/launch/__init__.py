"""Local workers: what each gets, how they start, speak and end together; never JAX."""
