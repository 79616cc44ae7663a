from .acknowledgements import Letters as Letters
from .communicators import Communication as Communication
from .communicators import ListPosition as ListPosition
from .deadlock import Deadlock as Deadlock
from .deadlock import deadlocks as deadlocks
from .deadlock import explain as explain
from .progress import progress as progress
