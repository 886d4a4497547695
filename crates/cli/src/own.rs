//! What the kernel says of this process.

/// What stands behind a name in `/proc/self/status`; none where the system does not tell.
pub fn status(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let said = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    said.map(|said| said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_us() {
        assert!(status("VmHWM").is_some_and(|said| said.ends_with(" kB")));
        assert!(status("SigIgn").is_some_and(|said| u64::from_str_radix(&said, 16).is_ok()));
        assert_eq!((status("VmHW"), status("nothing")), (None, None));
    }
}
