"""What the fronts for frameworks that trace programs have in common: JAX's and TensorFlow's."""
