"""A GPU in Python: threads, memory, barriers, and a report of everything that goes wrong.

A kernel is called as it is, once for every thread, and its ops emulate themselves on the thread
that runs (`thread.Thread`). Nothing is approximated that a kernel could depend on: shared memory is
bytes, addresses are addresses, asynchronous work ends as late or as early as the hardware allows.

- `machine` launches; `executor` decides who runs.
- `thread` and `block` are what ops see; `barriers` and `engines` are what threads wait for.
- `shared` and `global_memory` hold the bytes and check every access.
- `clocks` and `shadow` find data races; `banks` counts bank conflicts.
- `hazards`, `sites` and `reports` say what was found and where; `trace` what ran when.
- `ints` has Numba's integer rules for strict mode.
"""

from fa_numba.device.emulator.hazards import KINDS, Deadlock, EmulationError, Hazard
from fa_numba.device.emulator.session import emulate

__all__ = ["KINDS", "Deadlock", "EmulationError", "Hazard", "emulate"]
