"""The doors to JAX and Keras: one foreign library, one translator."""
