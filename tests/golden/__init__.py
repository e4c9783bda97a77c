"""Numbers that other people's packages gave on fixed inputs."""
