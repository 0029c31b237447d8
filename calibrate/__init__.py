"""What did happen: facts of a device, timed kernels and real training steps, fitted into a profile for planner."""
