//! Memory that was freed goes back to the system.
//!
//! What is written lies in blocks that are freed by the thousand once a log has them. The allocator keeps many of
//! them, between small things that stay, and finds them too small for others: a daemon that streams would grow with
//! every round.

/// Bytes of log between two goes: one takes some milliseconds, for which others who allocate may wait.
const BETWEEN: u64 = 128 << 20;

/// Counts what was freed.
#[derive(Debug, Default)]
pub struct Freed {
    bytes: u64,
}

impl Freed {
    /// `bytes` of log were written, and what held them is free.
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= BETWEEN {
            self.bytes = 0;
            give_back();
        }
    }
}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: takes a number, and only pages that nobody uses change.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators are not known to need it.
#[cfg(not(target_env = "gnu"))]
fn give_back() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
    }

    /// Set in the process that measures itself.
    const ALONE: &str = "SILT_TEST_ALONE";

    /// In a process of its own: other tests take memory and give it back meanwhile.
    #[test]
    fn what_lies_between_small_things_goes_back() {
        if std::env::var_os(ALONE).is_some() {
            return measure();
        }
        let own = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "freed::tests::what_lies_between_small_things_goes_back", "--nocapture"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&own.stdout);
        assert!(
            own.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&own.stderr)
        );
    }

    fn measure() {
        let before = resident();
        let mut small = Vec::new();
        let blocks: Vec<Vec<u8>> = (0..50_000)
            .map(|n| {
                if n % 64 == 0 {
                    small.push(vec![1u8; 200]);
                }
                vec![7; 4112]
            })
            .collect();
        small.push(vec![1; 200]);
        assert!(resident() > before + (190 << 20), "{before} {}", resident());
        drop(blocks);
        let mut freed = Freed::default();
        freed.add(BETWEEN - 1);
        assert!(resident() > before + (120 << 20), "it is not done all the time");
        freed.add(1);
        assert!(resident() < before + (60 << 20), "{before} {}", resident());
        assert_eq!(small.len(), 783);
    }
}
