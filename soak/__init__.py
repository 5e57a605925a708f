"""The soak: hundreds of clients and a backend that misbehaves, for as long as wanted, with the real process between.

    clients (each knows its answer) ── proxy under watch, its policy ever changing ── backend (told in each request)
            └────────────── ledger: every request ended as it was due ───────────────────────┘

Whatever is left over at the end, has grown, or was not exactly right, is a finding.
"""
