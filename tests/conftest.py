"""With ``-m gpu`` only tests/gpu is collected: a GPU machine need not have what others import."""

from pathlib import Path

GPU = Path(__file__).parent / "gpu"


def pytest_ignore_collect(collection_path, config):
    """Leave out all that cannot hold a test marked gpu."""
    if config.getoption("markexpr") != "gpu" or collection_path in GPU.parents:
        return None
    return True if GPU not in (collection_path, *collection_path.parents) else None
