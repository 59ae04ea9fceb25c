import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mutants
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked for each core")
def test_the_emulator_notices_the_mutants_of_the_row_softmax():
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_row_softmax.py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
