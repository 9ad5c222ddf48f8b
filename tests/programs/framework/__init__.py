"""A training library, for tests to install into a folder called site-packages."""
