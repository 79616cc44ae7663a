"""Property tests judge what comes out, not how soon: a machine may be busy. A standstill is shown with its report."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser):
    parser.addoption("--write-messages", action="store_true", help="write what the command line says of bad input anew")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for name in sorted(set(re.findall(r"\S+/pipesched-standstill-\w+\.txt", report.longreprtext))):
            if Path(name).is_file():
                report.sections.append((f"{name} of {item.name}", Path(name).read_text(errors="replace")))
    return report
