"""The examples are scripts, not a package: their folder has to be on the path to import them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))
