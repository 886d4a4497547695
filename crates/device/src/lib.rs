//! Block devices: files, block devices, memory, and wrappers that count, record and break them.
