"""Launcher for a checkout: `python cli.py …` does what the installed command `refkv …` does."""

from refkv_policy.cli import main

if __name__ == "__main__":
    main()
