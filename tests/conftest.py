import jax
import pytest


@pytest.fixture
def float64():
    """Double precision during one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
