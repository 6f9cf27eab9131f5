"""The broker: takes messages, keeps them, serves them."""
