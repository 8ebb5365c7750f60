"""Machines that parse what models write: values as JSON and as Python have them."""
