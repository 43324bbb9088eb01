"""Ways to carry a layout's transfers between ranks."""
