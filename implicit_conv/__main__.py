"""``python -m implicit_conv``."""

import sys

from implicit_conv.cli import main

sys.exit(main())
