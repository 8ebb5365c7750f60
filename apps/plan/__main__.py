from apps.plan.commandline import app

app()
