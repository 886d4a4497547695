//! Seeded operation generator and an in-memory POSIX model.
