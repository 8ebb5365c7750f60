from apps.playground.commandline import app
from kuberay.commandline import main

main(app, "python -m apps.playground")
