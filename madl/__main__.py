"""``python -m madl`` is the command ``madl``."""

from madl.cli import main

if __name__ == "__main__":
    main()
