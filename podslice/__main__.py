"""`python -m podslice`."""

from podslice.commandline import main

if __name__ == "__main__":
    main()
