"""What a model's folder may be and hold: which places callers may name, and what a file's header may say."""
