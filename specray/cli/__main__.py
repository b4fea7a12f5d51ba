"""`python -m specray.cli`: the `specray` command of this very interpreter."""

import sys

from specray.cli import main

sys.exit(main())
