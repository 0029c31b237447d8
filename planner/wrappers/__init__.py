"""Techniques applied to a module before it is traced or trained, with torch's own code."""
