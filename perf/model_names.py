"""Names in records of the suites of whole models."""

from __future__ import annotations

KIND = "models"  # of records
# Functions of one process: torch with `enable` in force, or the model as our backend of
# torch.compile has it; the same once more; torch's own kernels; and our function of arrays, which
# single calls have.
OURS, CONTROL, TORCH, ARRAYS = "ours", "control", "torch", "arrays"
# Rivals in processes of their own, and what each needs besides torch.
NEEDED = {
    "torch.compile": (),
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
    "openvino": ("openvino",),
}
ENGINES = tuple(NEEDED)
