"""Places in kernels: the line that calls the op, through stages and composite ops."""

import sys

import numpy as np
import pytest

from fa_numba.device.emulator import sites as sites_module
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.emulator.sites import Site, Sites, kernel_frame
from fa_numba.device.kernel import kernel
from tests.device.emulator_ops import base, line_of, load, machine_for, op, the_hazard

pytestmark = pytest.mark.emu


def stage(address):
    """Load, as a stage of a kernel does."""
    return load(address)  # staged


def test_a_place_in_a_stage_is_the_stage():
    @kernel(block=1, smem_bytes=16)
    def calls():
        stage(base())

    machine = machine_for(calls)
    (hazard,) = machine.hazards
    assert hazard.source == "return load(address)  # staged"
    assert hazard.file == stage.__code__.co_filename


def test_two_ops_of_one_line_are_two_places():
    @kernel(block=1, smem_bytes=16)
    def calls():
        load(base()) + load(base() + 8)  # both

    machine = machine_for(calls)
    assert [(h.line, h.count) for h in machine.hazards] == [(line_of(calls, "both"), 2)]
    assert [(c.accesses, c.site.line) for c in machine.bank_conflicts] == [
        (1, line_of(calls, "both"))
    ] * 2


def test_what_a_composite_op_does_counts_for_its_caller():
    """Reports name the kernel's line, and the op that acted."""

    @op("f32(u32)")
    def twice(thread, address):
        return load(address) + np.float32(thread.shared_read(address + 4, 4)[0])

    @kernel(block=1, smem_bytes=16)
    def calls():
        twice(base())  # composite
        load(base())  # alone

    for options in ({}, {"schedule": "random"}):
        found = [(h.op, h.line) for h in machine_for(calls, **options).hazards]
        inside, alone = line_of(calls, "composite"), line_of(calls, "alone")
        assert found == [("load", inside), ("twice", inside), ("load", alone)]


def _inside(name):
    return sites_module._DEVICE_FOLDER + name


def test_frames_inside_the_device_layer_are_passed_over():
    namespace = {"sys": sys, "kernel_frame": kernel_frame}
    source = "def f(depth):\n    return f(depth - 1) if depth else kernel_frame(sys._getframe())\n"
    exec(compile(source, _inside("f.py"), "exec"), namespace)
    assert namespace["f"](3).f_code.co_name == "test_frames_inside_the_device_layer_are_passed_over"
    assert kernel_frame(None) is None


def test_a_place_has_one_number_and_a_line():
    sites = Sites()

    def here():
        return sys._getframe(1)

    numbers, lines = [], []
    for _ in range(2):
        numbers.append(sites.number(here(), load))
        lines.append(sys._getframe().f_lineno - 1)
    # The frame has moved on when it is asked for its place: still one place each time round.
    assert numbers[0] == numbers[1] != 0
    site = sites.site(numbers[0])
    assert (site.op, site.line) == ("load", lines[0])
    assert site.source == "numbers.append(sites.number(here(), load))"
    assert str(site) == f"load at test_emulator_sites.py:{lines[0]}: {site.source}"
    assert sites.number(None, load) == 0
    assert sites.site(0) == Site("", "", 0, "")


def test_code_that_is_gone_keeps_its_number():
    """A new function at the address of a dead one must not be taken for it."""
    sites = Sites()
    names = set()
    for i in range(50):
        namespace = {"sys": sys}
        exec(f"def f{i}():\n    return sys._getframe()\n", namespace)
        frame = namespace[f"f{i}"]()
        names.add(sites.number(frame, None))
        del frame, namespace
    assert len(names) == 50


def test_hazards_of_a_launch_without_an_op():
    @kernel(block=1, smem_bytes=16)
    def plain():
        load(base())  # read

    machine = Machine()
    machine.launch(plain, 1, ())
    the_hazard(machine, "uninitialised", plain, "read", "load")
