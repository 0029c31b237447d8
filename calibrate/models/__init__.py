"""Models of published runs that no library has."""
