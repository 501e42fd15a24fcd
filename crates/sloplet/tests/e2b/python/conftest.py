"""The server is told by E2B_API_URL, E2B_SANDBOX_URL, E2B_VOLUME_API_URL and E2B_API_KEY."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
