"""What is sent: pure plans that import no TensorFlow, and the executor that runs them."""
