"""Says in one sentence why this Python cannot make the environment; says nothing when it can.

Runs on every Python there is, so it keeps to what Python 2 understands as well.
"""

import platform
import sys


def problem():
    # type: () -> str
    here = "%s is Python %s" % (sys.executable, platform.python_version())
    if sys.version_info[:2] < (3, 11):
        return (
            "FlowFabric needs Python 3.11 or newer and %s: "
            "name a newer one, as in 'PYTHON=python3.13 make test'" % here
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        package = "python%d.%d-venv" % sys.version_info[:2]
        return (
            "%s without the modules venv and ensurepip: install them, "
            "on Debian and Ubuntu with 'apt install %s'" % (here, package)
        )
    return ""


if __name__ == "__main__":
    sys.stdout.write(problem())
