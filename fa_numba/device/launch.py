"""Running a kernel: on the GPU, or in the emulator.

On the GPU a launch only enqueues: it returns before the kernel has run, waits for nothing, and can
be captured in a CUDA graph. What a kernel needs is loaded at its first launch on a device, from the
cache of `fa_numba.device.cache` or by compiling it; capture a graph after that.
"""

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fa_numba.device.arguments import is_cupy_type, packer
from fa_numba.device.cache import Compiled, cached
from fa_numba.device.emulator import state
from fa_numba.device.kernel import Kernel

if TYPE_CHECKING:
    from cuda.core import LaunchConfig, Stream

__all__ = ["launch", "target_of_device"]

Size = int | tuple[int, ...]

# Dynamic shared memory that every launch may have; a kernel must be allowed more.
_SHARED_BY_DEFAULT = 48 * 1024


def launch(
    kernel: Kernel,
    grid: Size,
    args: Sequence[Any],
    *,
    cluster: Size = 1,
    stream: Any = None,
    target: str = "gpu",
) -> None:
    """Run a kernel.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    grid : int or tuple of int
        Blocks in x, or in x, y and z. If one is 0, nothing is done.
    args : sequence
        In the order of the kernel's parameters. For a pointer: an array of CuPy or another that has
        ``__cuda_array_interface__``, or an address; in the emulator, a NumPy array.
    cluster : int or tuple of int
        Blocks of a cluster; divides the grid. Needs compute capability 9.0.
    stream : object, optional
        A stream of cuda.core, an object with ``__cuda_stream__`` (those of CuPy and PyTorch), or
        its address. By default CuPy's current stream, if there is an array of CuPy among the
        arguments, else the legacy default stream.
    target : {"gpu", "emulator"}
        Which machine. The emulator is that of the innermost ``fa_numba.emulate()``.

    Raises
    ------
    TypeError
        If there are too few or too many arguments, or one is of the wrong kind.
    OverflowError
        If a number does not fit its parameter.
    ValueError
        If the grid or the target is wrong.
    RuntimeError
        If the target is the GPU and there is none, or the emulator and none is active.
    """
    if target == "gpu":
        _launch_on_gpu(kernel, grid, args, cluster, stream)
    elif target == "emulator":
        _launch_in_emulator(kernel, three(grid), args, three(cluster))
    else:
        raise ValueError(f"target is {target!r}; accepted are 'gpu' and 'emulator'")


def target_of_device(compute_capability: tuple[int, int]) -> str:
    """Return the architecture to compile for.

    Parameters
    ----------
    compute_capability : tuple of int
        Of the device.

    Returns
    -------
    str
        With the suffix ``a`` for Hopper, whose WGMMA and setmaxnreg no other architecture has.
    """
    major, minor = compute_capability
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def three(size: Size) -> tuple[int, int, int]:
    """Return a size as x, y, z."""
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"size is {size}; accepted are 1 to 3 numbers >= 0")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


class _Loaded:
    """A kernel on one device."""

    def __init__(self, kernel: Kernel, device_id: int) -> None:
        from cuda.core import Device, ObjectCode
        from cuda.core import launch as core_launch

        self.kernel = kernel
        self.core_launch = core_launch
        target = target_of_device(Device(device_id).compute_capability)
        compiled = cached(kernel, target, _compile)
        self.code = ObjectCode.from_cubin(compiled.cubin, name=kernel.name)
        self.handle = self.code.get_kernel(compiled.symbol)
        self.configs: dict[Any, LaunchConfig] = {}
        self.pack = packer(kernel.parameters)
        if kernel.smem_bytes > _SHARED_BY_DEFAULT:
            _allow_shared_memory(self.handle, kernel.smem_bytes, device_id)

    def config(self, grid: Size, cluster: Size) -> "LaunchConfig | None":
        """Return the launch configuration; None if there is nothing to run."""
        if len(self.configs) >= 1024:
            self.configs.clear()
        config = self._make_config(three(grid), three(cluster))
        if config is not None:
            self.configs[grid, cluster] = config
        return config

    def _make_config(self, grid: tuple[int, ...], cluster: tuple[int, ...]) -> Any:
        from cuda.core import LaunchConfig

        if 0 in grid:
            return None
        if 0 in cluster or any(g % c for g, c in zip(grid, cluster, strict=True)):
            raise ValueError(f"grid is {grid}; accepted are multiples of the cluster {cluster}")
        options: dict[str, Any] = {"block": self.kernel.block, "shmem_size": self.kernel.smem_bytes}
        if cluster == (1, 1, 1):
            return LaunchConfig(grid=grid, **options)
        clusters = tuple(g // c for g, c in zip(grid, cluster, strict=True))
        return LaunchConfig(grid=clusters, cluster=cluster, **options)


_loaded: dict[tuple[int, int], _Loaded] = {}
_loading = threading.Lock()
_streams: dict[int, "Stream"] = {}
_thread = threading.local()


def _launch_in_emulator(
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[Any],
    cluster: tuple[int, int, int],
) -> None:
    machine = state.machine
    if machine is None:
        raise RuntimeError("no emulator is active: launch inside `with fa_numba.emulate():`")
    if cluster[1:] != (1, 1):
        raise ValueError(f"cluster is {cluster}; in the emulator a cluster extends in x only")
    _check_count(kernel, args)
    if 0 not in grid:
        machine.launch(kernel, grid, args, cluster=cluster[0])


def _launch_on_gpu(
    kernel: Kernel, grid: Size, args: Sequence[Any], cluster: Size, stream: Any
) -> None:
    device_id = _current_device()
    loaded = _loaded.get((id(kernel), device_id)) or _load(kernel, device_id)
    if len(args) != len(kernel.parameters):
        _check_count(kernel, args)
    values = loaded.pack(*args)
    config = loaded.configs.get((grid, cluster)) or loaded.config(grid, cluster)
    if config is not None:
        loaded.core_launch(_stream(stream, args), config, loaded.handle, *values)


def _check_count(kernel: Kernel, args: Sequence[Any]) -> None:
    if len(args) != len(kernel.parameters):
        names = ", ".join(kernel.parameters)
        raise TypeError(
            f"kernel {kernel.name} takes {len(kernel.parameters)} arguments ({names}), "
            f"got {len(args)}"
        )


def _load(kernel: Kernel, device_id: int) -> _Loaded:
    with _loading:
        key = (id(kernel), device_id)
        if key not in _loaded:  # the entry keeps the kernel alive, and so its id unique
            _loaded[key] = _Loaded(kernel, device_id)
        return _loaded[key]


def _compile(kernel: Kernel, target: str) -> Compiled:
    from fa_numba.device.compile import compile_kernel

    return compile_kernel(kernel, target)


def _allow_shared_memory(handle: Any, nbytes: int, device_id: int) -> None:
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, nbytes, handle.handle, device_id)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"the kernel needs {nbytes} bytes of shared memory; the device has less")


def _current_device() -> int:
    """Return the current device, making its primary context current if this thread has none."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(_thread, "ready"):
        return cupy.cuda.runtime.getDevice()
    from cuda.bindings import driver
    from cuda.core import Device

    try:
        device = Device() if cupy is None else Device(cupy.cuda.runtime.getDevice())
    except Exception as error:
        raise RuntimeError(
            f"no NVIDIA driver or GPU was found ({error}); without one, run kernels with "
            "target='emulator' inside `with fa_numba.emulate():`"
        ) from error
    _, context = driver.cuCtxGetCurrent()
    if context is None or int(context) == 0:
        device.set_current()
    _thread.ready = True
    return device.device_id


def _stream(stream: Any, args: Sequence[Any]) -> Any:
    """Return a stream that cuda.core takes."""
    if stream is None:
        is_cupy = any(map(is_cupy_type, map(type, args)))
        address = sys.modules["cupy"].cuda.get_current_stream().ptr if is_cupy else 0
    elif isinstance(stream, int):
        address = stream
    elif hasattr(stream, "__cuda_stream__"):
        _, address = stream.__cuda_stream__()
    else:
        raise TypeError(
            f"stream is {stream!r}; accepted are an address and objects with __cuda_stream__"
        )
    found = _streams.get(address)
    if found is None:
        from cuda.core import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream

        defaults = {
            0: LEGACY_DEFAULT_STREAM,
            1: LEGACY_DEFAULT_STREAM,
            2: PER_THREAD_DEFAULT_STREAM,
        }
        if len(_streams) >= 64:
            _streams.clear()
        found = _streams[address] = defaults.get(address) or Stream.from_handle(address)
    return found
