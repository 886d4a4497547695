//! Which thread serves which processor's queue.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// What one thread serves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The processor it runs on.
    pub(super) cpu: usize,
    /// For each of its entries the queue, which is the number of a processor.
    pub(super) queues: Vec<u16>,
}

/// A share for every processor that this process may run on; `entries` for a queue whose processor is there,
/// one for the others.
pub(super) fn shares(entries: usize) -> io::Result<Vec<Share>> {
    let read = |name| std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"));
    let bad = || io::Error::other("the list of processors makes no sense");
    let possible = list(&read("possible")?).ok_or_else(bad)?;
    let online = list(&read("online")?).ok_or_else(bad)?;
    let mine = sched_getaffinity(None)?;
    let mine: Vec<usize> = online.iter().copied().filter(|cpu| mine.is_set(*cpu)).collect();
    divide(possible.len(), &online, &mine, entries).ok_or_else(bad)
}

/// Queues are numbered from 0 to the count of possible processors.
fn divide(possible: usize, online: &[usize], mine: &[usize], entries: usize) -> Option<Vec<Share>> {
    let mut shares: Vec<Share> = mine.iter().map(|cpu| Share { cpu: *cpu, queues: Vec::new() }).collect();
    let mut others = 0;
    for queue in 0..possible {
        let count = if online.contains(&queue) { entries } else { 1 };
        let own = mine.iter().position(|cpu| *cpu == queue);
        let share = own.unwrap_or_else(|| {
            others += 1;
            others % shares.len().max(1)
        });
        let number = u16::try_from(queue).ok()?;
        shares.get_mut(share)?.queues.extend(std::iter::repeat_n(number, count));
    }
    shares.retain(|share| !share.queues.is_empty());
    Some(shares)
}

/// The numbers of a list like `0-2,5`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<u16>().ok()?);
        numbers.extend(first..=usize::from(last));
    }
    Some(numbers)
}

/// Keeps the calling thread on a processor.
pub(super) fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, cpu, "a thread of a ring moves about");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_possible_processor_has_a_queue() {
        let share = |cpu, queues: &[u16]| Share { cpu, queues: queues.to_vec() };
        assert_eq!(divide(2, &[0, 1], &[0, 1], 2).unwrap(), [share(0, &[0, 0]), share(1, &[1, 1])]);
        // 2 and 3 could be plugged in; we may not run on 0.
        let shares = divide(5, &[0, 1, 4], &[1, 4], 2).unwrap();
        let mut all: Vec<u16> = shares.iter().flat_map(|s| s.queues.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 0, 1, 1, 2, 3, 4, 4]);
        assert!(shares[0].queues.contains(&1) && shares[1].queues.contains(&4));
        assert_eq!(divide(2, &[0, 1], &[], 2), None);
        // More processors than numbers: the last has no queue of its own.
        assert_eq!(divide(1, &[0, 7], &[0, 7], 1).unwrap(), [share(0, &[0])]);
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(list("0-1\n").unwrap(), [0, 1]);
        assert_eq!(list("0,2-4,9").unwrap(), [0, 2, 3, 4, 9]);
        for bad in ["", "a", "0-", "0-99999999"] {
            assert_eq!(list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn this_machine_can_be_divided() {
        let shares = shares(4).unwrap();
        assert!(!shares.is_empty() && shares.iter().all(|share| !share.queues.is_empty()));
    }
}
