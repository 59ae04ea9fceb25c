"""Compiled kernels on disk: found again, never mixed up, never half there."""

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fa_numba.device import cache, ops
from fa_numba.device.cache import Compiled, cache_dir, cache_key, cached, load, store
from fa_numba.device.kernel import kernel
from fa_numba.device.types import float32, int32, out_ptr
from fa_numba.indexing import mask
from tests.device import op_kernels

CODE = Compiled(b"\x7fELF" + bytes(range(256)), "entry", "sm_80", ptx="text", log="64 registers\n")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FA_NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Compiler:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, kernel, target):
        self.calls += 1
        return replace(CODE, target=target)


def test_the_second_look_up_does_not_compile(folder):
    compiler = Compiler()
    first = cached(op_kernels.shuffle, "sm_80", compiler)
    assert first == CODE
    second = cached(op_kernels.shuffle, "sm_80", compiler)
    assert compiler.calls == 1
    assert second == replace(CODE, ptx="")
    assert len(list(folder.iterdir())) == 1
    cached(op_kernels.shuffle, "sm_90", compiler)
    assert compiler.calls == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
        lambda content: b"X" + content[1:],
        lambda content: b"rubbish",
    ],
)
def test_a_damaged_file_is_compiled_again(folder, damage):
    compiler = Compiler()
    cached(op_kernels.shuffle, "sm_80", compiler)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert load(path) is None
    assert cached(op_kernels.shuffle, "sm_80", compiler) == CODE
    assert compiler.calls == 2
    assert load(path) == replace(CODE, ptx="")


def test_a_cache_that_cannot_be_written_costs_only_time(folder):
    folder.write_text("a file, where the folder should be")
    compiler = Compiler()
    assert cached(op_kernels.shuffle, "sm_80", compiler) == CODE
    assert cached(op_kernels.shuffle, "sm_80", compiler) == CODE
    assert compiler.calls == 2
    with pytest.raises(OSError, match="cache"):
        store(folder / "x.cubin", CODE)


def test_a_failed_write_leaves_nothing(folder, monkeypatch):
    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        store(folder / "x.cubin", CODE)
    assert list(folder.iterdir()) == []


def test_readers_see_whole_files_while_others_write(folder):
    path = folder / "shared.cubin"
    codes = [replace(CODE, cubin=bytes([i]) * 100_000, ptx="") for i in range(8)]
    stop = threading.Event()
    seen = []

    def read():
        while not stop.is_set():
            found = load(path)
            if found is not None:
                seen.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [
        threading.Thread(target=lambda code=code: [store(path, code) for _ in range(20)])
        for code in codes
    ]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert seen
    assert all(code in codes for code in seen)
    assert load(path) in codes
    assert list(folder.iterdir()) == [path]


# ---------------------------------------------------------------------------- the key


@dataclass(frozen=True)
class Config:
    tile: int = 64


def base(out: out_ptr):
    ops.store_global_f32(out, helper(float32(1)), True)


def helper(x):
    return ops.fmax(x, float32(2))


def key_of(function=base, target="sm_80", **options):
    options = {"block": 32, "name": "k", "key": Config(), **options}
    return cache_key(kernel(**options)(function), target)


def closed_over(value):
    def function(out: out_ptr):
        ops.store_global_f32(out, float32(value), True)

    return function


def nested(value):
    def inner(x):
        return x + value

    def function(out: out_ptr):
        ops.store_global_f32(out, inner(float32(1)), True)

    return function


def test_the_same_program_has_the_same_key():
    assert key_of() == key_of()
    assert key_of(closed_over(3)) == key_of(closed_over(3))
    assert key_of(nested(3)) == key_of(nested(3))


@pytest.mark.parametrize(
    "other",
    [
        {"target": "sm_90"},
        {"block": 64},
        {"smem_bytes": 16},
        {"name": "other"},
        {"key": Config(128)},
        {"function": closed_over(3)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_changes_the_program_changes_the_key(other):
    assert key_of(**other) != key_of()


def test_constants_in_closures_change_the_key():
    assert key_of(closed_over(3)) != key_of(closed_over(4))
    assert key_of(closed_over(3)) != key_of(closed_over(3.0))
    assert key_of(nested(3)) != key_of(nested(4))


def test_parameter_types_change_the_key():
    def narrow(n: int32):
        """Nothing."""

    def wide(n: out_ptr):
        """Nothing."""

    assert key_of(narrow) != key_of(wide)


def test_a_changed_callee_changes_the_key(monkeypatch):
    before = key_of()
    monkeypatch.setitem(globals(), "helper", lambda x: ops.fmax(x, float32(3)))
    assert key_of() != before


def test_a_changed_op_changes_the_key(monkeypatch):
    def uses(out: out_ptr):
        ops.store_global_f32(out, operation(1.0), True)  # noqa: F821

    monkeypatch.setitem(globals(), "operation", ops.ex2)
    before = key_of(uses)
    monkeypatch.setitem(globals(), "operation", ops.lg2)
    assert key_of(uses) != before


def test_functions_of_modules_count():
    def uses(out: out_ptr, n: int32):
        left, right = mask.col_limits(n, 1, 2, 3, 4)
        ops.store_global_u32(out, left + right, True)

    described = "".join(cache._describe(uses, set()))
    assert mask.col_limits.__code__.co_code.hex() in described


def test_the_compilers_versions_are_part_of_the_key(monkeypatch):
    before = key_of()
    real = cache.metadata.version
    monkeypatch.setattr(
        cache.metadata, "version", lambda name: "0" if name == "numba-cuda" else real(name)
    )
    cache._environment.cache_clear()
    try:
        assert key_of() != before
    finally:
        cache._environment.cache_clear()


IN_ANOTHER_PROCESS = """
import sys
from tests.device import op_kernels
from fa_numba.device.cache import cache_key
from fa_numba.device.kernel import kernel
from fa_numba.device.types import int32

@kernel(block=32)
def with_a_set(n: int32):
    return n in {"some", "words", "in", "no", "order"}

print(*[cache_key(k, "sm_80") for k in [*op_kernels.ALL, with_a_set]])
print("numba" in sys.modules, "cuda" in sys.modules)
"""


def test_keys_are_the_same_in_every_process_and_need_no_compiler():
    outputs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        )
        outputs.append(done.stdout)
    keys, loaded = outputs[0].splitlines()
    assert outputs[0] == outputs[1]
    assert loaded == "False False"
    assert keys.split()[:-1] == [cache_key(k, "sm_80") for k in op_kernels.ALL]
    assert len(set(keys.split())) == len(op_kernels.ALL) + 1


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/fa_numba"),
        ("linux", {}, "~/.cache/fa_numba"),
        ("darwin", {}, "~/Library/Caches/fa_numba"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/fa_numba"),
        ("win32", {}, "~/AppData/Local/fa_numba"),
        ("linux", {"FA_NUMBA_CACHE_DIR": "/mine"}, "/mine"),
    ],
)
def test_the_folder_is_the_platforms(monkeypatch, platform, variables, expected):
    for name in ("FA_NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", platform)
    assert cache_dir() == Path(expected).expanduser()
