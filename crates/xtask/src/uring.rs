//! The kernel's switch of FUSE over io_uring, on for as long as tests need it.

use std::fs;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What mounts are made with where requests shall come through io_uring.
pub const OPTIONS: [&str; 2] = ["-o", "io_uring"];

/// The switch is on until this is dropped, which puts it back.
pub struct Switch {
    before: String,
}

impl Switch {
    /// `None` where the kernel has none, or we may not; a mount with the option does without then.
    pub fn on() -> Option<Self> {
        let before = fs::read_to_string(SWITCH).ok()?;
        fs::write(SWITCH, "Y").ok()?;
        Some(Self { before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, self.before.trim()) {
            eprintln!("xtask: {SWITCH} stays on: {error}");
        }
    }
}
