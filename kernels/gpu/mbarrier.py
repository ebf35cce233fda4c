"""Hooks: barriers in shared memory that count arrivals and bytes.

A barrier's phase ends when its arrivals and the bytes it expects are in. Waiting names the parity
of the phase; a fresh barrier is in phase 0, so waiting for parity 1 passes at once.
"""

from implicit_conv.kernels.gpu.ptx import instruction


@instruction(
    "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p mbarrier.init.shared::cta.b64 [$0], $1; }", "rrr"
)
def init(barrier, count, predicate):
    """``mbarrier.init``: expect `count` arrivals a phase.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("mbarrier.inval.shared::cta.b64 [$0];", "r")
def inval(barrier):
    """``mbarrier.inval``: its memory may serve otherwise.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("fence.mbarrier_init.release.cluster;", target="sm_90")
def fence_init():
    """``fence.mbarrier_init``: initialised barriers are visible to tensor copies.

    PTX ISA 9.7.13, PTX 8.0, sm_90.
    """


@instruction(
    "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }", "rr"
)
def arrive(barrier, predicate):
    """``mbarrier.arrive``: one arrival of each lane whose predicate holds.

    PTX ISA 9.7.13.15, PTX 7.0, sm_80.
    """


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr", target="sm_90")
def arrive_expect_tx(barrier, size):
    """``mbarrier.arrive.expect_tx``: arrive and expect `size` bytes more.

    PTX ISA 9.7.13.15, PTX 8.0, sm_90.
    """


@instruction("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", "rr", target="sm_90")
def expect_tx(barrier, size):
    """``mbarrier.expect_tx``: expect `size` bytes more.

    PTX ISA 9.7.13.15, PTX 8.0, sm_90.
    """


@instruction(
    lambda target: (
        "{ .reg .pred P; LAB_WAIT: "
        f"mbarrier.{'try' if target >= 90 else 'test'}_wait.parity.shared::cta.b64 P, [$0], $1; "
        "@P bra DONE; bra LAB_WAIT; DONE: }"
    ),
    "rr",
)
def wait(barrier, parity):
    """``mbarrier.try_wait.parity`` until the phase of this parity has ended.

    Before sm_90 ``mbarrier.test_wait.parity`` (7.1; sm_80), which does not suspend the thread.

    PTX ISA 9.7.13.15, PTX 7.8, sm_90.
    """
