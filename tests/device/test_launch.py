"""Launching: arguments, errors and the emulator here; the GPU itself in test_launch_gpu."""

import sys
import types as python_types

import numpy as np
import pytest

from fa_numba.device import launch as launching
from fa_numba.device import ops
from fa_numba.device.arguments import converter, packer
from fa_numba.device.emulator import emulate
from fa_numba.device.kernel import kernel
from fa_numba.device.launch import launch, target_of_device, three
from fa_numba.device.types import float32, int32, int64, out_ptr, ptr, uint32, uint64
from tests.device import op_kernels


@kernel(block=1)
def store_numbers(out: out_ptr, a: int32, b: uint32, c: int64, d: uint64, e: float32):
    """Write every argument's bits, as 32-bit words."""
    ops.store_global_u32(out, a, True)
    ops.store_global_u32(out + 4, b, True)
    ops.store_global_u32(out + 8, c, True)
    ops.store_global_u32(out + 12, c >> 32, True)
    ops.store_global_u32(out + 16, d, True)
    ops.store_global_u32(out + 20, d >> 32, True)
    ops.store_global_f32(out + 24, e, True)


NUMBERS = [
    (0, 0, 0, 0, 0.0),
    (-1, 2**32 - 1, -1, 2**64 - 1, -1.5),
    (-(2**31), 1, -(2**63), 2**63, float("inf")),
    (2**31 - 1, 7, 2**63 - 1, 2**40, 0.1),
    (np.int64(-5), np.uint32(9), np.int32(-9), np.uint64(2**63 + 5), np.float64(0.5)),
]


def words_of(a, b, c, d, e):
    """What `store_numbers` writes."""
    words = [int(x) % 2**32 for x in (a, b, c, int(c) >> 32, d, int(d) >> 32)]
    return [*words, int(np.float32(e).view(np.uint32))]


@pytest.mark.emu
@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_arrive_in_the_emulator(numbers):
    out = np.zeros(7, np.uint32)
    with emulate() as machine:
        launch(store_numbers, 1, [out, *numbers], target="emulator")
    assert machine.hazards == []
    assert out.tolist() == words_of(*numbers)


@pytest.mark.emu
def test_an_empty_grid_does_nothing():
    out = np.zeros(7, np.uint32)
    with emulate() as machine:
        launch(store_numbers, (3, 0, 1), [out, 1, 1, 1, 1, 1.0], target="emulator")
    assert machine.hazards == []
    assert (out == 0).all()


@pytest.mark.emu
def test_clusters_in_the_emulator():
    out = np.full((2, 3, 4, 64, 13), -1, np.int32)
    with emulate() as machine:
        launch(op_kernels.index, (4, 3, 2), [out], cluster=2, target="emulator")
        assert machine.hazards == []
        with pytest.raises(ValueError, match=r"cluster is \(1, 3, 1\); in the emulator a cluster"):
            launch(op_kernels.index, (4, 3, 2), [out], cluster=(1, 3), target="emulator")
        with pytest.raises(ValueError, match="cluster=3"):
            launch(op_kernels.index, (4, 3, 2), [out], cluster=3, target="emulator")
    assert (out[1, 2, 3, :, 3:6] == (3, 2, 1)).all()


def test_the_emulator_must_be_active():
    with pytest.raises(RuntimeError, match=r"launch inside `with fa_numba.emulate\(\):`"):
        launch(store_numbers, 1, [0] * 6, target="emulator")


@pytest.mark.emu
def test_a_wrong_number_of_arguments_is_refused():
    message = r"kernel store_numbers takes 6 arguments \(out, a, b, c, d, e\), got 2"
    with emulate(), pytest.raises(TypeError, match=message):
        launch(store_numbers, 1, [0, 1], target="emulator")


def test_a_wrong_target_is_refused():
    with pytest.raises(ValueError, match="target is 'tpu'; accepted are 'gpu' and 'emulator'"):
        launch(store_numbers, 1, [0] * 6, target="tpu")


@pytest.mark.parametrize("size", [-1, (), (1, 2, 3, 4), (1, -2)])
def test_a_wrong_size_is_refused(size):
    with pytest.raises(ValueError, match="size is"):
        three(size)


def test_sizes_are_filled_up():
    assert three(5) == (5, 1, 1)
    assert three((2, 3)) == (2, 3, 1)


@pytest.mark.parametrize(
    ("capability", "target"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120")],
)
def test_the_target_of_a_device(capability, target):
    assert target_of_device(capability) == target


# What cuda.core gets for an argument, without a GPU.


@pytest.mark.parametrize(
    ("t", "value", "passed"),
    [
        (int32, -1, -1),
        (uint32, 2**32 - 1, 2**32 - 1),
        (uint64, 2**64 - 1, -1),
        (int64, np.int32(-7), -7),
    ],
)
def test_numbers_keep_their_bits(t, value, passed):
    converted = converter("n", t)(value)
    assert converted == passed
    assert type(converted) is int


@pytest.mark.parametrize(
    ("t", "value"),
    [(int32, 2**31), (int32, -(2**31) - 1), (uint32, -1), (uint64, 2**64), (int64, 2**63)],
)
def test_numbers_that_do_not_fit_are_refused(t, value):
    with pytest.raises(OverflowError, match=f"size is {value}; accepted are"):
        converter("size", t)(value)


def test_floats_are_float32():
    assert type(converter("x", float32)(0.1)) is np.float32


class InterfaceArray:
    """An array of some library on the GPU."""

    __cuda_array_interface__ = {"data": (0x7000, False)}  # noqa: RUF012


def fake_cupy(monkeypatch, address):
    """A module cupy with arrays and a current stream."""
    cupy = python_types.ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {"__module__": "cupy", "data": None})
    stream = python_types.SimpleNamespace(ptr=address)
    cupy.cuda = python_types.SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    array = cupy.ndarray()
    array.data = python_types.SimpleNamespace(ptr=0x9000)
    return array


def test_addresses_of_arrays(monkeypatch):
    convert = converter("x", ptr)
    for _ in range(2):
        assert convert(0x5000) == 0x5000
        assert convert(InterfaceArray()) == 0x7000
    assert convert(fake_cupy(monkeypatch, 0)) == 0x9000


@pytest.mark.parametrize("numbers", NUMBERS)
def test_all_arguments_at_once_are_each_one_alone(monkeypatch, numbers):
    array = fake_cupy(monkeypatch, 0)
    for address in (0x5000, InterfaceArray(), array):
        args = [address, *numbers]
        packed = packer(store_numbers.parameters)(*args)
        alone = [
            converter(name, t)(x)
            for (name, t), x in zip(store_numbers.parameters.items(), args, strict=True)
        ]
        assert list(packed) == alone
        assert list(map(type, packed)) == [int] * 5 + [np.float32]


def test_an_argument_that_does_not_fit_is_refused_among_others():
    pack = packer(store_numbers.parameters)
    with pytest.raises(OverflowError, match="b is -1; accepted are"):
        pack(0x5000, 0, -1, 0, 0, 0.0)
    with pytest.raises(TypeError, match=r"a is 2\.5; accepted is an integer"):
        pack(0x5000, 2.5, 0, 0, 0, 0.0)


def test_host_arrays_are_refused_on_the_gpu():
    with pytest.raises(TypeError, match=r"x is a numpy\.ndarray; accepted on the GPU are arrays"):
        converter("x", ptr)(np.zeros(3))


class Streamed:
    def __cuda_stream__(self):
        return (0, 2)


def test_streams(monkeypatch):
    core = pytest.importorskip("cuda.core")
    legacy = core.LEGACY_DEFAULT_STREAM
    monkeypatch.setattr(launching, "_streams", {})
    assert launching._stream(None, []) is legacy
    assert launching._stream(None, [np.zeros(1), 5]) is legacy
    assert launching._stream(1, []) is legacy
    assert launching._stream(2, []) is core.PER_THREAD_DEFAULT_STREAM
    assert launching._stream(Streamed(), []) is core.PER_THREAD_DEFAULT_STREAM
    array = fake_cupy(monkeypatch, 2)
    converter("x", ptr)(array)
    assert launching._stream(None, [5, array]) is core.PER_THREAD_DEFAULT_STREAM
    assert launching._stream(0, [array]) is legacy
    with pytest.raises(TypeError, match="stream is 'x'; accepted are an address and objects with"):
        launching._stream("x", [])


# The way to cuda.core.launch, which is replaced: it would need a driver.


class FakeHandle:
    """A loaded kernel that notes its launches."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.handle = "handle"
        self.configs = {}
        self.pack = packer(kernel.parameters)
        self.launches = []

    def core_launch(self, stream, config, handle, *values):
        self.launches.append((stream, config, handle, values))

    config = launching._Loaded.config
    _make_config = launching._Loaded._make_config


@pytest.fixture
def loaded(monkeypatch):
    pytest.importorskip("cuda.core")
    monkeypatch.setattr(launching, "_current_device", lambda: 0)
    fake = FakeHandle(store_numbers)
    monkeypatch.setattr(launching, "_loaded", {(id(store_numbers), 0): fake})
    return fake


def test_a_launch_passes_stream_configuration_and_arguments(loaded):
    args = [0x1000, -1, 2, 3, 2**64 - 1, 0.5]
    launch(store_numbers, (2, 3), args, stream=Streamed())
    launch(store_numbers, (2, 3), args, stream=Streamed())
    first, second = loaded.launches
    assert first == second
    assert first[0] is launching._stream(2, [])
    assert first[1].grid == (2, 3, 1)
    assert first[1].block == (1, 1, 1)
    assert first[1].cluster is None
    assert first[1].shmem_size == 0
    assert first[2:] == ("handle", (0x1000, -1, 2, 3, -1, np.float32(0.5)))
    assert second[1] is first[1]


def test_clusters_divide_the_grid(loaded):
    args = [0x1000, 0, 0, 0, 0, 0.0]
    for cluster in (3, (2, 4), 0):
        with pytest.raises(ValueError, match=r"grid is \(4, 6, 1\); accepted are multiples of the"):
            launch(store_numbers, (4, 6), args, cluster=cluster, stream=0)


def test_configurations_do_not_pile_up(loaded):
    for n in range(1, 1100):
        launch(store_numbers, n, [0x1000, 0, 0, 0, 0, 0.0], stream=0)
    assert len(loaded.launches) == 1099
    assert len(loaded.configs) <= 1024


def test_an_empty_grid_launches_nothing(loaded):
    for _ in range(2):
        launch(store_numbers, (5, 0), [0x1000, 0, 0, 0, 0, 0.0], stream=0)
    assert loaded.launches == []


def test_a_wrong_number_of_arguments_is_refused_on_the_gpu(loaded):
    with pytest.raises(TypeError, match=r"kernel store_numbers takes 6 arguments .* got 7"):
        launch(store_numbers, 1, [0] * 7)
    assert loaded.launches == []


def test_without_a_driver_a_launch_says_so():
    core = pytest.importorskip("cuda.core")
    try:
        core.Device()
    except Exception:
        with pytest.raises(RuntimeError, match=r"no NVIDIA driver.* target='emulator' inside"):
            launch(store_numbers, 1, [0] * 6)
    else:
        pytest.skip("there is a driver")
