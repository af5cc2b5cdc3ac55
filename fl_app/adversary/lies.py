"""Names of the lies that simulated clients can tell, without the imports of `fl_app.adversary.liars`."""

LIES = ("flip", "scale", "backdoor")
