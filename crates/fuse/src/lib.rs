//! The kernel's FUSE protocol, mounting and unmounting.
