"""The Ray Serve application: one deployment a role, built from one YAML file by `build_app`."""
