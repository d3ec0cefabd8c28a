"""`python -m refkv_policy.cli` is the command `refkv`."""

from refkv_policy.cli import main

if __name__ == "__main__":
    main()
