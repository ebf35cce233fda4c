"""``python -m implicit_conv``."""

import sys

from implicit_conv.tools.cli import main

sys.exit(main())
