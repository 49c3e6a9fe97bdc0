"""The frameworks and interfaces that run on ringreduce, a module each."""
