"""What docs/trust/security.md says of a call itself."""

from processes import output_of

AUDITED = """
import sys

seen = []
sys.addaudithook(lambda event, arguments: seen.append(event))

import numpy as np
import implicit_conv as ic

x, w = np.ones((1, 2, 6, 6), np.float32), np.ones((3, 2, 3, 3), np.float32)
assert (ic.conv2d(x, w) == 18).all()
ic.conv2d_weight_grad(x, ic.conv2d(x, w), w.shape)
ic.plan_conv2d(x.shape, w.shape).explain()
assert "open" in seen  # the hook works
refused = ("socket.", "subprocess.", "os.exec", "os.posix_spawn", "os.system", "os.fork", "urllib.")
print(*sorted({event for event in seen if event.startswith(refused)}))
"""


def test_a_call_opens_no_connection_and_starts_no_program(tmp_path):
    """Python reports both to audit hooks, also where a library does them by Python's functions."""
    for _ in ("cold", "warm"):
        assert output_of(AUDITED, IMPLICIT_CONV_CACHE_DIR=tmp_path) == ""
