"""Reports: what they say, and that the same fault is reported once."""

from fa_numba.device.emulator.hazards import KINDS, HazardLog
from fa_numba.device.emulator.sites import Site

SITE = Site("load", "/somewhere/kernel.py", 12, "x = load(at)")


def add(log, kind="race", block=(1, 0, 0), thread=5, site=SITE):
    return log.add(kind, "something", kernel="softmax", block=block, thread=thread, site=site)


def test_a_report_names_kernel_block_thread_op_and_line():
    log = HazardLog()
    add(log)
    assert str(log.found[0]) == (
        "[race] kernel softmax, block (1, 0, 0), thread 5: something\n"
        "    load at kernel.py:12: x = load(at)"
    )
    assert log.found[0].kind in KINDS


def test_one_place_and_kind_is_one_hazard():
    log = HazardLog()
    first = add(log)
    assert add(log, thread=6) is first
    assert (first.count, first.thread) == (2, 5)
    assert "something (2 times)" in str(first)
    add(log, kind="uninitialised")
    add(log, site=Site("load", "/somewhere/kernel.py", 13, ""))
    add(log, site=Site("store", "/somewhere/kernel.py", 12, ""))
    assert [h.count for h in log.found] == [2, 1, 1, 1]


def test_a_report_of_the_whole_launch_names_no_thread():
    log = HazardLog()
    add(log, kind="unwritten", block=None, thread=None, site=Site("", "/k.py", 3, "def f(...)"))
    assert str(log.found[0]) == "[unwritten] kernel softmax: something\n    at k.py:3: def f(...)"
