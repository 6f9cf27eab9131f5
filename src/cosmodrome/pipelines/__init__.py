"""Ready Spark jobs over topics, each a small YAML file; built on the data sources and on public Spark API only."""
