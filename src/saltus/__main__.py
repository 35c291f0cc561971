"""`python -m saltus` is `saltus`."""

import sys

from .cli import main

sys.exit(main())
