"""What runs in here compares replicas with one device, so there must be replicas."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def eight_devices():
    assert len(jax.devices()) == 8, f"these tests need 8 CPU devices, JAX has {jax.devices()}"
