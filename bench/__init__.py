"""The benchmark: the proxy beside nginx and beside itself without rules, in one run, and the guard against drift."""
