"""What exists: accelerators, systems, prices and measured profiles. Facts with their sources, no opinions."""
