"""How each dialect writes errors."""
