"""Cost models: FLOPs, exponentials, HBM bytes and rooflines, from shapes alone."""

from fa_numba.models.cost import (
    arithmetic_intensity,
    attention_exps,
    attention_flops,
    attention_scratch_bytes,
)
from fa_numba.models.hbm import HbmTraffic, attention_hbm_bytes, attention_hbm_traffic
from fa_numba.models.pairs import allowed_pairs, key_rows_read, query_rows_read
from fa_numba.models.roofline import CHIPS, Chip, RooflineTime, roofline_time

__all__ = [
    "CHIPS",
    "Chip",
    "HbmTraffic",
    "RooflineTime",
    "allowed_pairs",
    "arithmetic_intensity",
    "attention_exps",
    "attention_flops",
    "attention_hbm_bytes",
    "attention_hbm_traffic",
    "attention_scratch_bytes",
    "key_rows_read",
    "query_rows_read",
    "roofline_time",
]
