"""Hooks: barriers in shared memory that count arrivals and bytes.

A phase of a barrier ends when all arrivals and all expected bytes have come. A wait names the
parity of the phase; a new barrier is in phase 0, so a wait for parity 1 does not block.
"""

from __future__ import annotations

from implicit_conv.kernels.gpu.ptx import instruction


@instruction(
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p mbarrier.init.shared::cta.b64 [$0], $1; }", "rrr"
)
def init(barrier: int, count: int, predicate: int) -> None:
    """``mbarrier.init``: expect `count` arrivals in each phase.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("fence.mbarrier_init.release.cluster;", target="sm_90")
def fence_init() -> None:
    """``fence.mbarrier_init``: make initialised barriers visible to tensor copies.

    PTX ISA 9.7.13, PTX 8.0, sm_90.
    """


@instruction(
    "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }", "rr"
)
def arrive(barrier: int, predicate: int) -> None:
    """``mbarrier.arrive``: each lane whose predicate holds arrives once.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr", target="sm_90")
def arrive_expect_tx(barrier: int, size: int) -> None:
    """``mbarrier.arrive.expect_tx``: arrive once and expect `size` more bytes.

    PTX ISA 9.7.13.15, PTX 8.0, sm_90.
    """


@instruction("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r")
def arrive_after_copies(barrier: int) -> None:
    """``cp.async.mbarrier.arrive.noinc``: each lane arrives when its copies are complete.

    With .noinc these arrivals count among those for which the barrier was initialised.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction(
    lambda target: (
        "{ .reg .pred P; LAB_WAIT: "
        f"mbarrier.{'try' if target >= 90 else 'test'}_wait.parity.shared::cta.b64 P, [$0], $1; "
        "@P bra DONE; bra LAB_WAIT; DONE: }"
    ),
    "rr",
)
def wait(barrier: int, parity: int) -> None:
    """``mbarrier.try_wait.parity``, repeated until the phase of this parity has ended.

    Targets before sm_90 get ``mbarrier.test_wait.parity`` (PTX 7.1), which does not suspend the
    thread.

    PTX ISA 9.7.13.15, PTX 7.8, sm_90.
    """
