"""Chips and the roofline: which resource of which chip a piece of work has to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CHIPS", "Chip", "RooflineTime", "roofline_time"]


@dataclass(frozen=True)
class Chip:
    """Peak rates of one GPU, from public data sheets.

    Attributes
    ----------
    name : str
        Marketing name and form factor.
    tensor_flops : float
        Dense (not sparse) bfloat16 tensor-core rate, FLOP/s.
    fp32_flops : float
        FP32 rate outside the tensor cores, FLOP/s.
    hbm_bandwidth : float
        HBM bandwidth, bytes/s.
    hbm_capacity : float
        HBM capacity, bytes.
    n_sm : int
        Streaming multiprocessors.
    tensor_clock : float
        Clock at which tensor_flops is quoted, Hz.
    mufu_per_clock : int
        Results of the special-function unit (exp2, among others) a clock and SM.
    source : str
        Where the numbers are published.
    """

    name: str
    tensor_flops: float
    fp32_flops: float
    hbm_bandwidth: float
    hbm_capacity: float
    n_sm: int
    tensor_clock: float
    mufu_per_clock: int
    source: str

    @property
    def exp_rate(self) -> float:
        """Exponentials a second when every special-function unit is busy."""
        return self.n_sm * self.mufu_per_clock * self.tensor_clock

    @property
    def ridge(self) -> float:
        """FLOPs a byte of HBM traffic above which the tensor cores are the limit."""
        return self.tensor_flops / self.hbm_bandwidth


# The MUFU rate is the row "base 2 exponential" in the table of arithmetic throughput of the CUDA
# C++ Programming Guide: 16 results a clock and SM for compute capability 8.0, 9.0 and 10.0.
CHIPS: dict[str, Chip] = {
    "A100": Chip(
        name="A100 80GB SXM",
        tensor_flops=312e12,
        fp32_flops=19.5e12,
        hbm_bandwidth=2.039e12,
        hbm_capacity=80e9,
        n_sm=108,
        tensor_clock=1.41e9,
        mufu_per_clock=16,
        source=(
            "NVIDIA A100 80GB data sheet (rates, memory); "
            "NVIDIA A100 architecture white paper (108 SMs, 1410 MHz)"
        ),
    ),
    "H100": Chip(
        name="H100 SXM",
        tensor_flops=989.4e12,
        fp32_flops=67e12,
        hbm_bandwidth=3.35e12,
        hbm_capacity=80e9,
        n_sm=132,
        tensor_clock=1.83e9,
        mufu_per_clock=16,
        source=(
            "NVIDIA H100 data sheet (1979 TFLOPS with sparsity, halved; FP32, memory); "
            "NVIDIA H100 architecture white paper (132 SMs; 989.4 = 132 x 4096 x 1.83 GHz)"
        ),
    ),
    "H200": Chip(
        name="H200 SXM",
        tensor_flops=989.4e12,
        fp32_flops=67e12,
        hbm_bandwidth=4.8e12,
        hbm_capacity=141e9,
        n_sm=132,
        tensor_clock=1.83e9,
        mufu_per_clock=16,
        source="NVIDIA H200 data sheet: the compute of H100 SXM, 141 GB at 4.8 TB/s",
    ),
    "B200": Chip(
        name="B200 SXM",
        tensor_flops=2.25e15,
        fp32_flops=75e12,
        hbm_bandwidth=8e12,
        hbm_capacity=180e9,
        n_sm=148,
        tensor_clock=1.856e9,
        mufu_per_clock=16,
        source=(
            "NVIDIA HGX B200 data sheet, an eighth of the board (36 PFLOPS bf16 with sparsity, "
            "halved; FP32 600 TFLOPS; 1.44 TB of memory); DGX B200 data sheet (64 TB/s); "
            "FlashAttention-4, arXiv 2603.05451 (148 SMs, 8192 FLOP/clock/SM and so 1.856 GHz, "
            "MUFU 16/clock/SM)"
        ),
    ),
}


class RooflineTime(NamedTuple):
    """Lower bound of a run time, and the resource that sets it.

    Attributes
    ----------
    seconds : float
        The largest of the single times: they overlap at best, they never go away.
    bound : str
        "tensor", "hbm" or "mufu".
    tensor_seconds, hbm_seconds, mufu_seconds : float
        The time each resource needs alone.
    """

    seconds: float
    bound: str
    tensor_seconds: float
    hbm_seconds: float
    mufu_seconds: float


def roofline_time(flops: float, hbm_bytes: float, chip: Chip, *, exps: float = 0) -> RooflineTime:
    """Bound the run time of some work on a chip from below.

    Parameters
    ----------
    flops : float
        Tensor-core FLOPs (`attention_flops`).
    hbm_bytes : float
        Bytes through HBM (`attention_hbm_bytes`).
    chip : Chip
        One of `CHIPS`, or your own.
    exps : float, default 0
        Exponentials on the special-function units (`attention_exps`); 0 is the classic roofline.

    Returns
    -------
    RooflineTime
        The bound in seconds and what sets it.

    Examples
    --------
    >>> roofline_time(989.4e12, 3.35e9, CHIPS["H100"]).bound
    'tensor'
    """
    times = {
        "tensor": flops / chip.tensor_flops,
        "hbm": hbm_bytes / chip.hbm_bandwidth,
        "mufu": exps / chip.exp_rate,
    }
    bound = max(times, key=lambda name: times[name])
    return RooflineTime(times[bound], bound, times["tensor"], times["hbm"], times["mufu"])
