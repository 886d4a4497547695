//! POSIX semantics over the engine: inodes, directories, files.
