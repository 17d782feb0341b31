"""Helpers for TensorFlow's data service: a job of workers that prepare data for a training job."""
