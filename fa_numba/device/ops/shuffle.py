"""Values between the lanes of a warp, without memory.

All 32 lanes take part: in a branch that some do not take, the warp hangs. A shuffle orders no
memory: what a lane wrote to shared memory before can be read by others only after a barrier.
"""

from typing import Any

import numpy as np

from fa_numba.device.ops.builder import composite
from fa_numba.device.ops.declare import instruction
from fa_numba.device.ops.scalar import add, fmax

__all__ = [
    "quad_max",
    "quad_sum",
    "shuffle_idx_f32",
    "shuffle_idx_u32",
    "shuffle_xor_f32",
    "shuffle_xor_u32",
]

_BFLY = "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;"
_IDX = "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;"


def _exchange(thread: Any, value: Any, source: int, absent: Any) -> Any:
    received = thread.warp_exchange(value)[source & 31]
    return absent if received is None else received


# What a lane that has returned would give is undefined on the GPU.
_ABSENT_F32 = np.float32("nan")
_ABSENT_U32 = 0xFFFFFFFF


@instruction(_BFLY, "f32(f32, u32)", since=(5, 0), section="shfl.sync", side_effect=True, cycles=2)
def shuffle_xor_f32(thread: Any, value: Any, mask: int) -> Any:
    """Return the value of the lane whose number differs in the bits of `mask`.

    Since sm_30.

    Parameters
    ----------
    value : float32
    mask : uint32
        1 to 31.

    Returns
    -------
    float32
    """
    return _exchange(thread, value, thread.lane ^ mask, _ABSENT_F32)


@instruction(_BFLY, "u32(u32, u32)", since=(5, 0), section="shfl.sync", side_effect=True, cycles=2)
def shuffle_xor_u32(thread: Any, value: Any, mask: int) -> Any:
    """Return the value of the lane whose number differs in the bits of `mask`.

    Since sm_30.

    Parameters
    ----------
    value : uint32
    mask : uint32
        1 to 31.

    Returns
    -------
    uint32
    """
    return _exchange(thread, value, thread.lane ^ mask, _ABSENT_U32)


@instruction(_IDX, "f32(f32, u32)", since=(5, 0), section="shfl.sync", side_effect=True, cycles=2)
def shuffle_idx_f32(thread: Any, value: Any, source: int) -> Any:
    """Return the value of lane `source`.

    Since sm_30.

    Parameters
    ----------
    value : float32
    source : uint32
        0 to 31; may differ between the lanes.

    Returns
    -------
    float32
    """
    return _exchange(thread, value, source, _ABSENT_F32)


@instruction(_IDX, "u32(u32, u32)", since=(5, 0), section="shfl.sync", side_effect=True, cycles=2)
def shuffle_idx_u32(thread: Any, value: Any, source: int) -> Any:
    """Return the value of lane `source`.

    Since sm_30. With a constant source the compiler learns that all lanes get the same.

    Parameters
    ----------
    value : uint32
    source : uint32
        0 to 31; may differ between the lanes.

    Returns
    -------
    uint32
    """
    return _exchange(thread, value, source, _ABSENT_U32)


def _reduce_quad(b: Any, op: Any, value: Any) -> Any:
    for mask in (1, 2):
        value = b.map(op, value, b.map(shuffle_xor_f32, value, mask))
    return value


@composite("f32(f32)", since=(5, 0), section="shfl.sync", cycles=6, stepwise=True)
def quad_max(b: Any, value: Any) -> Any:
    """Return the largest value of the four lanes of a quad, to all of them. NaN loses.

    Two shuffles.

    Parameters
    ----------
    value : float32

    Returns
    -------
    float32
    """
    return _reduce_quad(b, fmax, value)


@composite("f32(f32)", since=(5, 0), section="shfl.sync", cycles=6, stepwise=True)
def quad_sum(b: Any, value: Any) -> Any:
    """Return the sum over the four lanes of a quad, the same bits to all of them.

    Two shuffles; (a + b) + (c + d).

    Parameters
    ----------
    value : float32

    Returns
    -------
    float32
    """
    return _reduce_quad(b, add, value)
