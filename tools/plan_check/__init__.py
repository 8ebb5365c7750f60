"""Compares figures for our TPU programs with those committed: `python -m tools.plan_check [NAME ...]`.

Compiles every step of the catalog's language models, and Stable Diffusion 1.5's programs, each for a slice,
without a TPU; a language model of many layers is extrapolated from a few short ones. tests/plan/expected/ has the
memory, traffic and cost of one run of each program on a device; less is better. A number that grew by more than 2 %
fails. `--turn DAY` compiles a few programs, other ones each day. `--quick` compiles nothing: it counts what the largest
programs do as they are traced. `--write` regenerates the expectations; their diff shows the effect of a change.

cases         what is checked
compiled      figures of the compiled programs
traced        figures of the programs before the compiler, in seconds
expectations  the committed figures, and how they are compared
turns         what CI compiles on which day
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, so that it does not take a local TPU
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
