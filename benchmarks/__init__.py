"""What Cosmodrome costs: `make bench`. Small in the test run, so that nothing here rots; full-size on demand."""
