//! Reads a volume with no help from the engine and checks every invariant.
