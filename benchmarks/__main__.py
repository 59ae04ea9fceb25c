"""Run every benchmark, with the options of the command line."""

from benchmarks import numpy_forward

for benchmark in (numpy_forward,):
    benchmark.main()
