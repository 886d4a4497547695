//! A NILFS2 volume: block maps, DAT, checkpoints, log writer, recovery.
