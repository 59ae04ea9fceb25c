"""Settings of the whole suite; the strict ones are in pyproject.toml."""

from __future__ import annotations

import os

# pytest-xdist runs a worker per core: BLAS threads on top would only fight for the same cores. Set
# before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis

# No deadline: a slow machine is no failure. Derandomised: a commit passes or fails the same way
# everywhere; `--hypothesis-profile=explore` searches with fresh seeds.
hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("suite")
