"""`python -m bertworks`: the same as the `bertworks` command, for torchrun and where no script is on the path."""

from bertworks.cli import main

if __name__ == "__main__":
    main()
