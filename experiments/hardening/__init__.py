"""What hardens networks against noise: quantization-aware training, noisy training, and both."""
