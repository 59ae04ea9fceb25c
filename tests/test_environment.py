"""environment.yml says for conda what pyproject.toml says for pip.

The environment cannot be solved in the tests, so the texts are compared: the same packages under
their conda-forge names, the same bounds.
"""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent

# pip name -> conda-forge name, where they differ
CONDA_NAMES = {
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "nvidia-cuda-nvcc": "cuda-nvcc-tools",
    "nvidia-cuda-nvdisasm": "cuda-nvdisasm",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-nvjitlink": "libnvjitlink",
}
# What conda needs and pip does not, each with its reason
CONDA_ONLY = {
    "python": "pip takes the interpreter it runs in",
    "pip": "installs fa_numba itself and the model's weights",
    "cuda-version": "chooses the CUDA of all other packages; pip has cu12 and cu13",
}
# The CUDA tools of the two extras differ in version; in conda cuda-version decides.
BOUND_FREE = {"cuda-nvcc-tools", "cuda-nvdisasm", "cuda-nvrtc", "libnvjitlink"}
EXTRAS = ("emulator", "examples", "notebooks", "test", "cu12", "cu13")


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def parse(requirement):
    """Name without extras, and bounds, of ``name[extra]>=lower,<upper``; None without bounds."""
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?(>=[0-9.]+(?:,<[0-9.]+)?)?", requirement)
    assert match, f"cannot read {requirement!r}: write name>=lower or name>=lower,<upper"
    return match[1], match[2]


def requirements(names, extras):
    """All requirements of these extras, those of fa_numba's own extras resolved."""
    found = []
    for extra in names:
        for requirement in extras[extra]:
            own = re.fullmatch(r"fa_numba\[([^]]*)\]", requirement)
            found += requirements(own[1].split(","), extras) if own else [parse(requirement)]
    return found


def pip_packages():
    data = project()
    base = [parse(requirement) for requirement in data["dependencies"]]
    bounds = {}
    for name, bound in base + requirements(EXTRAS, data["optional-dependencies"]):
        bounds.setdefault(CONDA_NAMES.get(name, name), set()).add(bound)
    return bounds


def conda_packages():
    data = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert data["channels"] == ["conda-forge"]
    parsed = [parse(requirement) for requirement in data["dependencies"]]
    assert len(parsed) == len(dict(parsed)), "a package is listed twice"
    return dict(parsed)


def test_every_pip_requirement_has_one_bound():
    differing = {name: bounds for name, bounds in pip_packages().items() if len(bounds) != 1}
    assert differing == {}


def test_nothing_is_missing_and_nothing_is_extra():
    assert set(conda_packages()) - set(CONDA_ONLY) == set(pip_packages())
    assert set(CONDA_ONLY) <= set(conda_packages())


def test_bounds_agree():
    conda = conda_packages()
    for name, (bound,) in pip_packages().items():
        if name in BOUND_FREE:
            assert conda[name] is None, f"{name}: its version is cuda-version's"
        else:
            assert conda[name] == bound, name
    assert conda["python"] == project()["requires-python"]


def test_cuda_versions_are_those_of_the_extras():
    text = (ROOT / "environment.yml").read_text()
    majors = sorted(int(e[2:]) for e in project()["optional-dependencies"] if e[:2] == "cu")
    assert f"cuda-version>={majors[0]},<{majors[-1] + 1}" in text


def test_the_licence_and_the_version_are_said_alike_everywhere():
    """CITATION.cff and the changelog repeat the version, the licence file the licence."""
    import fa_numba

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fa_numba.__version__
    assert citation["license"] == project()["license"]
    assert f"## {fa_numba.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License")
