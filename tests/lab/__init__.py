"""The laboratory: benches, probes, checks of prose and of the supply chain. Programs to run, and few tests."""
