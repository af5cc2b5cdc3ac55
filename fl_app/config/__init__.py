"""Configuration: compose overrides from ``conf/``, check them, and build the parts of a run."""
