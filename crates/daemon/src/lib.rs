//! What runs while a volume is mounted.
