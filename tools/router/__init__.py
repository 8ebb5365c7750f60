"""What routers cost, and how long readers wait when an engine behind them dies."""
