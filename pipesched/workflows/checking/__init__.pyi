from .check_report import CheckReport as CheckReport
from .check_report import check as check
from .check_report import verdict as verdict
from .version_report import VersionReport as VersionReport
from .version_report import versions as versions
