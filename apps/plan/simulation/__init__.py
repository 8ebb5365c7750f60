"""Engines on a virtual clock: the real scheduler, page pool and router policy, with step times from elsewhere.

Nothing is computed. A step takes what `timing.StepClock` says: of the programs that the TPU compiler made (`compiled`),
or fitted to those that ran on this machine (`fitted`).
"""
