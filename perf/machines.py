"""Machines of records in words: the generation of a CPU, or its name as the record has it."""

from __future__ import annotations

import re

from perf.record import Record

AMD = re.compile(r"AMD.*\((family \d+, model \d+)\)")
GENERATIONS = {"family 25, model 17": "Zen 4", "family 26, model 2": "Zen 5"}  # of AMD


def generation_of(record: Record) -> str | None:
    """The generation of the CPU; None for a CPU that is not in `GENERATIONS`, for one whose family
    the record does not name, and for a run on a GPU.
    """
    found = AMD.fullmatch(record["machine"]["cpu"])
    return GENERATIONS.get(found[1]) if found and not record["machine"]["gpu"] else None


def machine_of(record: Record) -> str:
    """The machine in few words, and the vectors if the run had narrower ones than its CPU."""
    machine = record["machine"]
    if machine["gpu"]:
        return str(machine["gpu"])
    name = generation_of(record) or machine["cpu"]
    if name.startswith("Intel") and "Xeon" in name:
        name = f"Intel Xeon{' with AMX' * ('amx-tile' in machine['flags'])}"
    narrow = "avx512f" in machine["flags"] and machine["vector_bits"] == 256
    return f"{name}{', AVX2' if narrow else ''}"


def machine_line(record: Record) -> str:
    """The machine in full: CPU, number of CPUs, vectors, system."""
    machine = record["machine"]
    cpu = f"{machine['cpu']}, {machine['cores']} CPUs, {machine['vector_bits']}-bit vectors"
    return f"{machine['gpu'] or cpu}; {machine['system']}"
