"""TMA tensor maps: values, limits, walks."""
