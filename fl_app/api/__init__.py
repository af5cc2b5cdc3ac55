"""The functions that `fl_app` offers to scripts and notebooks, one module each."""
