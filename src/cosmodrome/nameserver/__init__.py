"""The name server: where each topic lives, as the brokers tell it."""
