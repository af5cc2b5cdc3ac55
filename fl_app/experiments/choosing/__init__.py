"""Choice of a defense for the user's own data and model: candidates, trials, limits, a recommendation."""
