"""`python -m flowfabric` is the command line."""

from flowfabric.cli.main import main

if __name__ == "__main__":
    main()
