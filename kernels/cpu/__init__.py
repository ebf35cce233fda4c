"""The CPU engine: loads, packed panels, emitted microkernels, launches."""
