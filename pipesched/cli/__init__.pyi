from . import commands as commands
from . import options as options
from . import output as output
