"""mendproxy: a reverse proxy that repairs the requests its backend would refuse."""

__version__ = "0.1.0"
