"""The doors to the machine: environment, processes, files, network, clock; never JAX."""
