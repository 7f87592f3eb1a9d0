"""What every package needs and nobody imports from outside: arrays, validation, atomic writes, optional imports."""
