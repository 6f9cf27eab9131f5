"""Pop consumption: messages taken from any queue, invisible to others until they are acked or come again."""
