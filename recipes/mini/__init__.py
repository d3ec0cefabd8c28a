"""The embedded model's data, training, measurements and export: `python -m recipes.mini.train` from a checkout."""
