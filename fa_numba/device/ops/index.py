"""Who am I: the thread in its block, the block in its grid, the lane in its warp."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fa_numba.device.emulator import state
from fa_numba.device.ops.declare import Instruction, instruction

if TYPE_CHECKING:
    from fa_numba.device.emulator.thread import Thread

__all__ = [
    "block_index_x",
    "block_index_y",
    "block_index_z",
    "block_size_x",
    "block_size_y",
    "block_size_z",
    "grid_size_x",
    "grid_size_y",
    "grid_size_z",
    "lane",
    "thread_index_x",
    "thread_index_y",
    "thread_index_z",
]


def _index_op(name: str, register: str, what: str, ask: Callable[["Thread"], int]) -> Instruction:
    def emulate() -> int:
        thread = state.current
        assert thread is not None
        return ask(thread)

    emulate.__doc__ = f"""Return the {what}.

    Since sm_20.

    Returns
    -------
    int32
    """
    return instruction(
        f"mov.u32 $0, %{register};",
        "i32()",
        since=(5, 0),
        section=f"Special registers: %{register.partition('.')[0]}",
        needs_thread=True,
        name=name,
    )(emulate)


thread_index_x = _index_op(
    "thread_index_x", "tid.x", "thread's index in the block along x", lambda t: t.index[0]
)
thread_index_y = _index_op(
    "thread_index_y", "tid.y", "thread's index in the block along y", lambda t: t.index[1]
)
thread_index_z = _index_op(
    "thread_index_z", "tid.z", "thread's index in the block along z", lambda t: t.index[2]
)
block_index_x = _index_op(
    "block_index_x", "ctaid.x", "block's index in the grid along x", lambda t: t.block.index[0]
)
block_index_y = _index_op(
    "block_index_y", "ctaid.y", "block's index in the grid along y", lambda t: t.block.index[1]
)
block_index_z = _index_op(
    "block_index_z", "ctaid.z", "block's index in the grid along z", lambda t: t.block.index[2]
)
block_size_x = _index_op(
    "block_size_x", "ntid.x", "number of threads of a block along x", lambda t: t.block.dim[0]
)
block_size_y = _index_op(
    "block_size_y", "ntid.y", "number of threads of a block along y", lambda t: t.block.dim[1]
)
block_size_z = _index_op(
    "block_size_z", "ntid.z", "number of threads of a block along z", lambda t: t.block.dim[2]
)
grid_size_x = _index_op(
    "grid_size_x", "nctaid.x", "number of blocks of the grid along x", lambda t: t.grid[0]
)
grid_size_y = _index_op(
    "grid_size_y", "nctaid.y", "number of blocks of the grid along y", lambda t: t.grid[1]
)
grid_size_z = _index_op(
    "grid_size_z", "nctaid.z", "number of blocks of the grid along z", lambda t: t.grid[2]
)
lane = _index_op("lane", "laneid", "thread's lane in its warp, 0 to 31", lambda t: t.lane)
