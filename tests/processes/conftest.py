"""pytest's importlib mode puts nothing on the path; what tests of this room share is found so."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
