"""How what ships with the package was made. These run from a checkout and are not in the wheel."""
