"""`python -m calibrant.cli`."""

import sys

from calibrant.cli import main

sys.exit(main())
