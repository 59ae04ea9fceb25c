"""FlashAttention in Python: every idea as a NumPy reference and as a Numba-CUDA kernel."""

from fa_numba.api import (
    check_errors,
    explain,
    flash_attn_backward,
    flash_attn_combine,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_backward,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    quantize,
)
from fa_numba.device.emulator import emulate
from fa_numba.kv_cache import PagedKVCache
from fa_numba.padding import pad_input, unpad_input

__version__ = "0.1.0"

__all__ = [
    "PagedKVCache",
    "check_errors",
    "emulate",
    "explain",
    "flash_attn_backward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_backward",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "pad_input",
    "quantize",
    "unpad_input",
]
