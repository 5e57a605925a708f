"""`python -m proxy`: the same as the command `mendproxy`."""

from proxy.cli import main

main()
