"""`python -m calibrant`."""

import sys

from calibrant.cli import main

sys.exit(main())
