"""Floor 7: the engine's core over a runner that only knows costs, and the command `radixlm sim`.

Traces become sessions of calls (`calls`); `replay` runs them on a virtual clock; nothing here loads
torch but `calibration`.
"""
