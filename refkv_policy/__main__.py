"""`python -m refkv_policy …`: the command `refkv`, where its script is not on the path."""

from __future__ import annotations

from refkv_policy.cli import main

if __name__ == "__main__":
    main()
