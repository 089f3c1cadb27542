"""Kubernetes manifests for both services: typed models in, YAML out, checked against schemas."""
