"""Settings of the whole suite; the strict ones are in pyproject.toml."""

from __future__ import annotations

import os

# pytest-xdist runs a worker per core: BLAS threads on top would only fight for the same cores. Set
# before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import pytest

# No deadline: a slow machine is no failure. Derandomised: a commit passes or fails the same way
# everywhere; `--hypothesis-profile=explore` searches with fresh seeds.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session")
def cp():
    """CuPy, where there is a GPU for it."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy, package cupy-cuda13x or cupy-cuda12x")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    if count == 0:
        pytest.skip("needs an NVIDIA GPU")
    return cupy
