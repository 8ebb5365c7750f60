"""`python -m kuberay`."""

from kuberay.commandline import main

if __name__ == "__main__":
    main()
