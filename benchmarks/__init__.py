"""Measurements beside peers: ``python -m benchmarks`` runs all of them."""

import os

# OpenBLAS reads these when NumPy is loaded, and this package is imported before NumPy. They would
# change its kernels for all contestants.
for _variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_variable, None)
