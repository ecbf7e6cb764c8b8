import jax
import jaxtyping
import pytest


@pytest.fixture
def float64():
    """Double precision during one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def without_shape_checks():
    """The package as users meet it: shapes are not checked before a function sees them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
