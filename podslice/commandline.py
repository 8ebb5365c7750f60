"""The program `podslice`. Its commands are in `podslice.commands`, whose imports take half a second."""

import signal


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during the imports
    import kuberay.commandline
    from podslice.commands import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    kuberay.commandline.main(app, "podslice")
