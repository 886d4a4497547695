//! What depends on the release of the kernel, where it cannot be asked.

/// Whether this is Linux `major.minor` or newer.
fn is_at_least(major: u32, minor: u32) -> bool {
    numbers(&rustix::system::uname().release().to_string_lossy()) >= (major, minor)
}

/// The first two numbers of a release, 0 where there is none.
fn numbers(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Linux passes sync(2) on to `fuseblk` mounts from 6.18 on.
pub fn passes_sync() -> bool {
    is_at_least(6, 18)
}

/// Before 6.16 Linux says that a page is written when its request still waits for us.
pub fn says_written_early() -> bool {
    !is_at_least(6, 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_two_numbers() {
        for (release, known) in
            [("6.18.44-fc", (6, 18)), ("6.1.0-37-amd64", (6, 1)), ("7", (7, 0)), ("x", (0, 0))]
        {
            assert_eq!(numbers(release), known);
        }
    }
}
