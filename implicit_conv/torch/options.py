"""What options of this door may be; without an import of torch."""

CHOOSE = "measured", "always"
