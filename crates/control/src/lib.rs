//! The requests one can make of a volume, mounted or not, and who may.
