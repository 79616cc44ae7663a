from .emulated_stage import emulated_stages as emulated_stages
from .link_throttle import MOST_BYTES as MOST_BYTES
from .link_throttle import Page as Page
from .link_throttle import ThrottledRoutes as ThrottledRoutes
from .link_throttle import ThrottledTransport as ThrottledTransport
from .link_throttle import require_emulable as require_emulable
