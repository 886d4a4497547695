//! On-disk structures of NILFS2: parsing is validating; no I/O and no policy.
