"""Property tests judge what comes out, not how soon: a machine may be busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser):
    parser.addoption("--write-messages", action="store_true", help="write what the command line says of bad input anew")
