import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mutants
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutmut forks a process for each mutant")
def test_the_tests_of_indexing_notice_its_mutants():
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run.py"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
