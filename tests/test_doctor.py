"""The doctor: its findings on described machines, its probes on this one."""

import ctypes
import json
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

import fa_numba
from fa_numba.doctor import Facts, Gpu, collect, diagnose, format_report, main, to_json
from fa_numba.doctor import facts as probes
from fa_numba.doctor.findings import cuda_wheels, supported_major, version_tuple

BASE = {
    "numpy": "2.4.6",
    "ml_dtypes": "0.6.0",
    "numba": "0.68.1",
    "numba-cuda": "0.30.4",
    "cuda-core": "1.2.2",
    "cuda-bindings": "13.5.0",
}
CU12 = {
    "cuda-bindings": "12.9.4",
    "cuda-toolkit": "12.9.1",
    "cupy-cuda12x": "14.2.0",
    "nvidia-cuda-nvcc-cu12": "12.9.86",
    "nvidia-nvjitlink-cu12": "12.9.86",
}
CU13 = {
    "cupy-cuda13x": "14.2.0",
    "cuda-toolkit": "13.0.2",
    "nvidia-nvvm": "13.0.88",
    "nvidia-nvjitlink": "13.0.88",
}
HOPPER = Gpu("NVIDIA H200", "9.0")


def machine(packages=None, **facts):
    facts = {"numba_cuda_active": True, "python": "3.12.1", "system": "Linux x86_64"} | facts
    return Facts(packages=BASE | (packages or {}), **facts)


def gpu_machine(packages=None, driver="580.65.06", driver_cuda=(13, 0), **facts):
    return machine(packages, driver=driver, driver_cuda=driver_cuda, gpus=(HOPPER,), **facts)


def problems(facts):
    """Findings that are not fine, as (level, subject, text, fix)."""
    return [
        (f.level, f.subject, f.text, f.fix)
        for f in diagnose(facts).findings
        if f.level in ("warning", "error")
    ]


def only_problem(facts):
    found = problems(facts)
    assert len(found) == 1, found
    return found[0]


def test_a_laptop_without_gpu_is_healthy():
    report = diagnose(machine())
    assert problems(report.facts) == []
    assert ("note", "driver") in [(f.level, f.subject) for f in report.findings]
    assert report.exit_code == 0
    assert [(f.name, f.works) for f in report.families] == [
        ("reference", True),
        ("simt", False),
        ("sm80", False),
        ("sm90", False),
    ]


@pytest.mark.parametrize(
    ("packages", "driver", "driver_cuda"),
    [
        pytest.param(CU13, "580.65.06", (13, 0), id="cu13"),
        pytest.param(CU12, "535.104.05", (12, 2), id="cu12"),
        pytest.param(CU12, "580.65.06", (13, 0), id="cu12 on a newer driver"),
        pytest.param(CU13 | {"nvidia-cuda-nvdisasm": "13.5.37"}, "580.1", (13, 0), id="nvdisasm"),
    ],
)
def test_a_matching_gpu_machine_is_healthy(packages, driver, driver_cuda):
    facts = gpu_machine(packages, driver, driver_cuda)
    assert problems(facts) == []
    assert "NVIDIA H200, sm_90" in format_report(diagnose(facts))


def test_a_gpu_without_cuda_packages_gets_the_extra_of_its_driver():
    for driver, driver_cuda, extra in (("580.65.06", (13, 0), "cu13"), ("550.54", (12, 4), "cu12")):
        findings = diagnose(gpu_machine(None, driver, driver_cuda)).findings
        notes = [f.fix for f in findings if f.level == "note"]
        assert notes == [f"pip install 'fa_numba[{extra}]'"]


@pytest.mark.parametrize(
    ("packages", "driver_cuda", "removed", "kept"),
    [
        pytest.param(
            CU13 | {"cupy-cuda12x": "14.2.0"}, (13, 0), ["cupy-cuda12x"], "cu13", id="two cupys"
        ),
        pytest.param(
            CU12 | {"nvidia-nvvm": "13.5.37", "nvidia-cuda-nvcc": "13.5.37"},
            (12, 4),
            ["nvidia-cuda-nvcc", "nvidia-nvvm"],
            "cu12",
            id="compiler of CUDA 13 beside cu12",
        ),
        pytest.param(
            CU13 | {"nvidia-nvjitlink-cu12": "12.9.86"},
            None,
            ["cuda-toolkit", "cupy-cuda13x", "nvidia-nvjitlink", "nvidia-nvvm"],
            "cu12",
            id="no driver to decide: the older one runs on more machines",
        ),
    ],
)
def test_mixed_wheels_are_named_with_the_way_out(packages, driver_cuda, removed, kept):
    facts = machine(packages, driver_cuda=driver_cuda, gpus=(HOPPER,) if driver_cuda else ())
    level, subject, text, fix = next(p for p in problems(facts) if "more than one" in p[2])
    assert (level, subject) == ("warning", "CUDA wheels")
    assert all(name in text for name in removed)
    uninstall, install = fix.split(" && ")
    assert shlex.split(uninstall) == ["pip", "uninstall", "-y", *removed]
    assert shlex.split(install) == ["pip", "install", "--force-reinstall", f"fa_numba[{kept}]"]


def test_bindings_of_the_other_major_are_replaced_not_removed():
    facts = gpu_machine(CU12 | {"cuda-bindings": "13.5.0"}, "550.54", (12, 4))
    fixes = [p[3] for p in problems(facts) if "more than one" in p[2]]
    assert fixes == ["pip install --force-reinstall 'fa_numba[cu12]'"]


def test_wheels_that_pytorch_owns_are_not_to_be_removed():
    packages = CU13 | {"torch": "2.9.1", "nvidia-cuda-nvrtc-cu12": "12.8.93"}
    _, _, text, fix = only_problem(gpu_machine(packages))
    assert "nvidia-cuda-nvrtc-cu12" in text
    assert "uninstall" not in fix
    assert "pip install 'fa_numba[cu13]' in a new environment" in fix


def test_a_driver_too_old_for_the_wheels_is_the_ptx_version_trap():
    level, subject, text, fix = only_problem(gpu_machine(CU13, "550.54.14", (12, 4)))
    assert (level, subject) == ("warning", "CUDA wheels")
    assert "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in text
    assert "nvidia-nvvm" in text
    assert "pip install 'fa_numba[cu12]'" in fix
    assert "580" in fix


def test_a_driver_that_runs_no_cuda_of_ours():
    level, subject, text, fix = only_problem(gpu_machine(CU12, "470.82.01", (11, 4)))
    assert (level, subject) == ("warning", "driver")
    assert "470.82.01, CUDA 11.4 is older than 525" in text
    assert "525" in fix


def test_a_driver_that_does_not_answer():
    facts = machine(CU13, driver="580.65.06", driver_problem="cuInit failed with CUDA error 803")
    level, subject, text, _ = only_problem(facts)
    assert (level, subject) == ("warning", "driver")
    assert "CUDA error 803" in text


def test_a_driver_without_a_gpu():
    facts = machine(CU13, driver="580.65.06", driver_cuda=(13, 0))
    assert only_problem(facts)[1:3] == ("GPU", "the driver shows none")


def test_without_numba_the_reference_still_works():
    errors = {"numba": "ModuleNotFoundError: No module named 'numba'"}
    facts = machine(import_errors=errors, numba_cuda_active=None, requirements={"numba": ">=0.62"})
    del facts.packages["numba"]
    level, subject, text, fix = only_problem(facts)
    assert (level, subject) == ("warning", "numba")
    assert "is not installed" in text
    assert fix == "pip install --upgrade 'numba>=0.62'"
    assert diagnose(facts).exit_code == 0


def test_numba_that_refuses_this_numpy():
    errors = {"numba": "ImportError: Numba needs NumPy 2.3 or less. Got NumPy 2.4."}
    text = only_problem(machine(import_errors=errors))[2]
    assert "does not import" in text
    assert "NumPy 2.3 or less" in text


def test_without_ml_dtypes_nothing_works():
    errors = {"ml_dtypes": "ModuleNotFoundError: No module named 'ml_dtypes'"}
    report = diagnose(machine(import_errors=errors))
    assert ("error", "ml_dtypes") in [(f.level, f.subject) for f in report.findings]
    assert report.exit_code == 1
    assert report.families[0].reason == "needs ml_dtypes"


def test_a_reference_that_fails():
    report = diagnose(machine(reference_problem="a small attention call gave a wrong result"))
    assert report.exit_code == 1
    assert "no   reference  a small attention call gave a wrong result" in format_report(report)


@pytest.mark.parametrize(("version", "fine"), [("3.10.13", False), ("3.11.0", True), ("4.0", True)])
def test_python_version(version, fine):
    assert (problems(machine(python=version)) == []) is fine


@pytest.mark.parametrize(
    ("installed", "fine"), [("2.2.6", False), ("2.3", True), ("2.4.6", True), ("2.5.0", False)]
)
def test_versions_out_of_bounds(installed, fine):
    """The reference may still work with them, so this is no error."""
    facts = machine({"numpy": installed}, requirements={"numpy": ">=2.3,<2.5"})
    fix = "pip install --upgrade 'numpy>=2.3,<2.5'"
    expected = [] if fine else [("warning", "numpy", f"{installed} is not >=2.3,<2.5", fix)]
    assert problems(facts) == expected


def test_numba_cuda_that_did_not_take_its_place():
    assert only_problem(machine(numba_cuda_active=False))[1] == "numba.cuda"


def test_wheels_by_major():
    assert cuda_wheels(BASE) == {}
    assert cuda_wheels(BASE | CU12) == {
        12: [
            "cuda-toolkit",
            "cupy-cuda12x",
            "nvidia-cuda-nvcc-cu12",
            "nvidia-nvjitlink-cu12",
            "cuda-bindings",
        ]
    }
    # cuDNN counts its own versions, and PyTorch may bring it for another CUDA without harm
    assert cuda_wheels({"nvidia-cudnn-cu12": "9.10.2", "nvidia-nccl-cu13": "2.27"}) == {}


@pytest.mark.parametrize(
    ("driver", "driver_cuda", "major"),
    [
        (None, None, None),
        ("580.65.06", None, 13),
        ("579.99", None, 12),
        ("525.60.13", None, 12),
        ("524.0", None, None),
        ("535.1", (14, 1), 13),
        (None, (11, 8), None),
    ],
)
def test_supported_major(driver, driver_cuda, major):
    assert supported_major(machine(driver=driver, driver_cuda=driver_cuda)) == major


def test_version_tuple():
    assert version_tuple("13.5.37rc1") == (13, 5, 37)
    assert version_tuple("unknown") == ()


# ------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.65.06\n580.65.06\n", "580.65.06"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", None),
        ("", None),
    ],
)
def test_parse_driver_version(text, version):
    assert probes.parse_driver_version(text) == version


def test_parse_requirements_takes_bounds_of_the_base_only():
    requires = ["numpy<2.5,>=2.3", "ml-dtypes >= 0.5", 'greenlet>=3; extra == "emulator"', "plain"]
    assert probes.parse_requirements(requires) == {"numpy": "<2.5,>=2.3", "ml_dtypes": ">=0.5"}


def fake_driver(init_status=0):
    """Stand for libcuda: CUDA 12.4 and one A100, or a cuInit that fails."""

    def write(value):
        def function(pointer, *rest):
            pointer._obj.value = value
            return 0

        return function

    def name(buffer, size, device):
        buffer.value = b"NVIDIA A100"
        return 0

    def attribute(pointer, which, device):
        return write({75: 8, 76: 0}[which])(pointer)

    return SimpleNamespace(
        cuDriverGetVersion=write(12040),
        cuInit=lambda flags: init_status,
        cuDeviceGetCount=write(1),
        cuDeviceGet=write(0),
        cuDeviceGetName=name,
        cuDeviceGetAttribute=attribute,
    )


def test_ask_driver():
    assert probes.ask_driver(fake_driver()) == ((12, 4), (Gpu("NVIDIA A100", "8.0"),), None)
    assert probes.ask_driver(fake_driver(999)) == ((12, 4), (), "cuInit failed with CUDA error 999")


def test_no_driver_library(monkeypatch):
    def refuse(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert probes.query_driver_api() == (None, (), None)


def test_a_stub_for_linking_is_not_a_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert "is not a driver" in probes.query_driver_api()[2]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 20)]
)
def test_no_nvidia_smi(monkeypatch, error):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(subprocess, "run", refuse)
    assert probes.query_driver_version() is None


def test_import_error_is_text():
    assert probes.import_error("json") is None
    assert probes.import_error("no_such_module_here").startswith("ModuleNotFoundError: ")


def test_the_small_call_notices_a_wrong_result(monkeypatch):
    assert probes.try_reference() is None
    right = fa_numba.flash_attn_func

    def wrong(*args, **kwargs):
        out, lse = right(*args, **kwargs)
        return out, lse / 2

    monkeypatch.setattr(fa_numba, "flash_attn_func", wrong)
    assert probes.try_reference() == "a small attention call gave a wrong result"


def test_a_reference_that_raises_is_a_finding(monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(fa_numba, "flash_attn_func", fail)
    assert probes.try_reference() == "MemoryError: no room"


def test_what_is_not_installed_is_no_error(monkeypatch):
    """From a checkout that is not installed; with Numba but without its CUDA part."""

    def missing(name):
        raise probes.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(probes.importlib.metadata, "requires", missing)
    assert probes.base_requirements() == {}
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    assert probes._numba_cuda_active() is False


def test_nvidia_smi_on_the_path_is_asked(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.65.06\necho 580.65.06\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probes.query_driver_version() == "580.65.06"


def test_the_text_report_says_what_to_type():
    lines = format_report(diagnose(gpu_machine(CU13, "550.54.14", (12, 4)))).splitlines()
    (at,) = (i for i, line in enumerate(lines) if "UNSUPPORTED_PTX_VERSION" in line)
    assert lines[at].startswith("  warning  CUDA wheels: ")
    assert lines[at + 1].strip().startswith("-> pip install 'fa_numba[cu12]'")


def test_this_machine(capsys):
    facts = collect()
    assert facts.reference_problem is None
    assert facts.import_errors == {}
    assert set(facts.requirements) == set(probes.BASE_MODULES)
    assert facts.packages["fa-numba"] == fa_numba.__version__
    assert main() == 0
    assert "yes  reference" in capsys.readouterr().out


def test_json_says_the_same():
    report = diagnose(gpu_machine(CU13 | {"cupy-cuda12x": "14.2.0"}))
    data = json.loads(to_json(report))
    assert data["exit_code"] == 0
    assert data["cuda_wheels"] == {"12": ["cupy-cuda12x"], "13": cuda_wheels(BASE | CU13)[13]}
    assert data["facts"]["gpus"] == [{"name": "NVIDIA H200", "compute_capability": "9.0"}]
    assert [f["text"] for f in data["findings"]] == [f.text for f in report.findings]


def test_the_doctor_needs_the_standard_library_only():
    """It must come up where NumPy or Numba is broken, so it imports neither by itself."""
    code = (
        "import sys, types; package = types.ModuleType('fa_numba'); "
        f"package.__path__ = {list(fa_numba.__path__)!r}; sys.modules['fa_numba'] = package; "
        "import fa_numba.doctor; "
        "print([m for m in ('numpy', 'numba', 'ml_dtypes', 'packaging') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
