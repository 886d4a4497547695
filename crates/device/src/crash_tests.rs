//! Tests of the crash states.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::*;
use crate::recorder::Content;
use crate::{Device, Fault, Recorder, Times};

const SIZE: u64 = 64 * SECTOR;

fn sector(device: &MemoryDevice, n: u64) -> u8 {
    let mut buf = [0; SECTOR as usize];
    device.read_at(n * SECTOR, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == buf[0]), "a sector is atomic");
    buf[0]
}

fn recorder() -> (MemoryDevice, Recorder<MemoryDevice>) {
    let memory = MemoryDevice::new(SIZE);
    (memory.fork(), Recorder::new(memory))
}

fn write<D: Device>(d: &Recorder<D>, first: u64, count: usize, byte: u8) {
    d.write_at(first * SECTOR, &[&vec![byte; count * SECTOR as usize]]).unwrap();
}

fn states<D: Device>(base: &MemoryDevice, d: &Recorder<D>, options: CrashOptions) -> Vec<CrashState> {
    CrashStates::new(base, d.record().events(), options).collect::<Result<_>>().unwrap()
}

fn only_flushed() -> CrashOptions {
    CrashOptions { per_flush: 1, ..CrashOptions::default() }
}

#[test]
fn prefixes_at_flushes_with_their_marks() {
    let (base, d) = recorder();
    write(&d, 0, 1, 1);
    d.mark(10);
    d.flush().unwrap();
    d.mark(20);
    write(&d, 1, 1, 2);
    d.flush().unwrap();
    d.mark(30);
    let seen: Vec<_> = states(&base, &d, only_flushed())
        .iter()
        .map(|s| (sector(&s.device, 0), sector(&s.device, 1), s.acknowledged.clone(), s.cut.flushes))
        .collect();
    let expected = [(0, 0, vec![10], 0), (1, 0, vec![10, 20], 1), (1, 2, vec![10, 20, 30], 2)];
    assert_eq!(seen, expected, "a mark before its flush shows as acknowledged and lost");
}

#[test]
fn every_subset_of_few_pending_writes() {
    let (base, d) = recorder();
    write(&d, 9, 1, 9);
    d.flush().unwrap();
    for n in 0..3 {
        write(&d, n, 1, n as u8 + 1);
    }
    let options = CrashOptions { per_flush: 200, ..CrashOptions::default() };
    let subsets: BTreeSet<_> = states(&base, &d, options)
        .iter()
        .filter(|s| s.cut.flushes == 1)
        .map(|s| {
            assert_eq!(sector(&s.device, 9), 9, "flushed");
            [0, 1, 2].map(|n| sector(&s.device, n))
        })
        .collect();
    assert_eq!(subsets.len(), 8);
}

#[test]
fn writes_are_torn_by_sectors() {
    let (base, d) = recorder();
    d.flush().unwrap();
    write(&d, 4, 6, 7);
    let options = CrashOptions { per_flush: 200, ..CrashOptions::default() };
    let seen: BTreeSet<Vec<u8>> = states(&base, &d, options)
        .iter()
        .map(|s| (4..10).map(|n| sector(&s.device, n)).collect::<Vec<_>>())
        .collect();
    assert!(seen.contains(&vec![7, 7, 7, 0, 0, 0]), "a prefix");
    assert!(seen.contains(&vec![0, 0, 0, 7, 7, 7]), "all but a prefix");
    assert!(seen.contains(&vec![7, 7, 0, 7, 7, 7]), "all but one");
    assert!(seen.contains(&vec![0, 0, 7, 0, 0, 0]), "one alone");
    assert!(seen.contains(&vec![7, 7, 7, 7, 0, 0]) && seen.contains(&vec![0, 0, 0, 0, 7, 7]), "whole pages");
    assert!(seen.len() > 30, "{}", seen.len());
}

/// Against all that writing in order can leave, by bytes and not by how a state was drawn.
#[test]
fn the_order_is_told_by_the_bytes() {
    let (base, d) = recorder();
    d.flush().unwrap();
    write(&d, 4, 3, 7);
    // Sectors that stay as they are.
    write(&d, 7, 2, 0);
    write(&d, 0, 2, 8);
    let options = CrashOptions { max_states: 4000, per_flush: 2000, ..CrashOptions::default() };
    let mut counts = BTreeMap::new();
    for s in states(&base, &d, options).iter().filter(|s| s.cut.flushes == 1) {
        let bytes = [4, 5, 6, 0, 1].map(|n| sector(&s.device, n) != 0);
        let [a, b, c, x, y] = bytes;
        let expected = match bytes {
            [false, false, false, false, false] | [true, true, true, false, false] => Order::Changes,
            [true, true, true, true, true] => Order::Changes,
            [true, false, false, false, false] | [true, true, false, false, false] => Order::Sectors,
            [true, true, true, true, false] => Order::Sectors,
            _ if (x || y) && !(a && b && c) => Order::AcrossChanges,
            _ => Order::OutOfOrder,
        };
        assert_eq!(s.cut.order, expected, "{bytes:?}, {}", s.cut);
        counts.entry(bytes).or_insert(expected);
    }
    assert_eq!(counts.len(), 32, "all there are");
    assert_eq!(counts.values().filter(|o| **o == Order::OutOfOrder).count(), 5);
}

#[test]
fn unaligned_writes_tear_at_the_device_s_sectors() {
    let (base, d) = recorder();
    d.write_at(SECTOR - 10, &[&[7; 20]]).unwrap();
    d.flush().unwrap();
    let seen: BTreeSet<_> = states(&base, &d, CrashOptions { per_flush: 100, ..CrashOptions::default() })
        .iter()
        .map(|s| {
            let mut buf = [0; 20];
            s.device.read_at(SECTOR - 10, &mut buf).unwrap();
            (buf[0], buf[9], buf[10], buf[19])
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([(0, 0, 0, 0), (7, 7, 7, 7), (7, 7, 0, 0), (0, 0, 7, 7)]));
}

#[test]
fn durable_writes_come_after_what_precedes_them() {
    let (base, d) = recorder();
    write(&d, 0, 1, 1);
    d.write_durably(SECTOR, &[2; 2 * SECTOR as usize]).unwrap();
    d.mark(5);
    write(&d, 9, 1, 9);
    let all = states(&base, &d, CrashOptions { per_flush: 100, ..CrashOptions::default() });
    for s in &all {
        let (before, first, second) = (sector(&s.device, 0), sector(&s.device, 1), sector(&s.device, 2));
        assert!(before == 1 || (first, second) == (0, 0), "{}", s.cut);
        if s.acknowledged == [5] {
            assert_eq!((before, first, second), (1, 2, 2), "{}", s.cut);
        }
    }
    assert!(all.iter().any(|s| sector(&s.device, 1) != sector(&s.device, 2)), "torn before it is done");
}

#[test]
fn discards_are_pending_too() {
    let base = MemoryDevice::from_bytes(&[5; SIZE as usize]);
    let d = Recorder::new(base.fork());
    d.discard(0, 4 * SECTOR).unwrap();
    d.flush().unwrap();
    let all = states(&base, &d, CrashOptions::default());
    let first: BTreeSet<_> =
        all.iter().filter(|s| s.cut.flushes == 0).map(|s| sector(&s.device, 0)).collect();
    assert_eq!(first, BTreeSet::from([0, 5]));
    assert_eq!(sector(&all.last().unwrap().device, 0), 0);
    assert_eq!(sector(&all.last().unwrap().device, 4), 5);
}

#[test]
fn what_a_failed_flush_left_stays_in_doubt() {
    let seen: BTreeSet<_> = (0..32)
        .map(|seed| {
            let base = MemoryDevice::new(SIZE);
            let d = Recorder::new(Fault::new(base.fork()));
            write(&d, 0, 1, 1);
            d.inner().fail_flushes(Times::Next(1));
            assert!(d.flush().is_err());
            write(&d, 1, 1, 2);
            d.flush().unwrap();
            let last = states(&base, &d, CrashOptions { seed, ..only_flushed() }).pop().unwrap();
            assert_eq!(sector(&last.device, 1), 2, "written after it");
            sector(&last.device, 0)
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([0, 1]));
}

#[test]
fn states_are_bounded_spread_and_repeatable() {
    let (base, d) = recorder();
    for i in 0..400 {
        write(&d, i % 60, 3, i as u8);
        d.flush().unwrap();
    }
    let options = CrashOptions { seed: 3, max_states: 50, per_flush: 4 };
    let digest = |options| -> Vec<_> {
        states(&base, &d, options)
            .iter()
            .map(|s| {
                let mut all = vec![0; SIZE as usize];
                s.device.read_at(0, &mut all).unwrap();
                (s.cut, all)
            })
            .collect()
    };
    let first = digest(options);
    assert!((45..=50).contains(&first.len()), "{}", first.len());
    assert!(first.windows(2).all(|w| w[0].0.event <= w[1].0.event));
    assert!(first.iter().enumerate().all(|(i, s)| s.0.state == i));
    let plain: Vec<_> =
        first.iter().filter(|s| s.0.landing == Landing::Nothing).map(|s| s.0.flushes).collect();
    assert_eq!((plain.len(), plain[24]), (25, 400), "half of them");
    assert!(plain.windows(2).all(|w| (15..18).contains(&(w[1] - w[0]))), "{plain:?}");
    assert!(first.iter().any(|s| matches!(s.0.landing, Landing::Torn { .. })));
    assert!(first == digest(options));
    let every = digest(CrashOptions { seed: 3, max_states: 401, per_flush: 1 });
    assert_eq!(every.len(), 401, "all flush points, where there is room");
    assert!(digest(CrashOptions { max_states: 0, ..options }).is_empty());
    assert!(digest(CrashOptions { per_flush: 0, ..options }).is_empty());
}

#[test]
fn a_record_that_does_not_fit_is_an_error() {
    let (_, d) = recorder();
    write(&d, 60, 1, 1);
    d.flush().unwrap();
    let small = MemoryDevice::new(SECTOR);
    assert!(CrashStates::new(&small, d.record().events(), CrashOptions::default()).any(|s| s.is_err()));
}

#[test]
fn equal_bytes_have_equal_fingerprints_and_others_have_not() {
    let (base, d) = recorder();
    write(&d, 3, 2, 9);
    d.flush().unwrap();
    for n in 0..3 {
        write(&d, n, 2, n as u8 + 1);
    }
    d.discard(3 * SECTOR, SECTOR).unwrap();
    d.flush().unwrap();
    // Takes back what it did: the bytes of a state before.
    write(&d, 3, 1, 9);
    let mut known = BTreeMap::new();
    let all = states(&base, &d, CrashOptions { per_flush: 200, ..CrashOptions::default() });
    for s in &all {
        let mut bytes = vec![0; SIZE as usize];
        s.device.read_at(0, &mut bytes).unwrap();
        let print = *known.entry(bytes).or_insert(s.fingerprint);
        assert_eq!(print, s.fingerprint, "{}", s.cut);
    }
    assert!(known.len() < all.len(), "some states are equal");
    let prints: BTreeSet<u64> = known.values().copied().collect();
    assert_eq!(prints.len(), known.len());
}

#[test]
fn many_states_of_a_large_volume_are_cheap() {
    let size = 64u64 << 20;
    let base = MemoryDevice::from_bytes(&vec![1; size as usize]);
    let d = Recorder::new(base.fork());
    let block = vec![2; 128 << 10];
    for i in 0..256u64 {
        d.write_at(i * 251 % 500 * (128 << 10), &[&block]).unwrap();
        if i % 4 == 3 {
            d.flush().unwrap();
        }
    }
    let start = Instant::now();
    let mut made = 0;
    for state in CrashStates::new(&base, d.record().events(), CrashOptions::default()) {
        assert_eq!(state.unwrap().device.len(), size);
        made += 1;
    }
    let took = start.elapsed();
    println!("{made} states of {} MiB in {took:?}", size >> 20);
    assert!(made >= 500, "{made}");
    assert!(took.as_secs() < 20, "{took:?}");
}

fn change(id: u64, at: u64, outcome: Outcome) -> Event {
    let content = Content::Bytes(vec![id as u8; SECTOR as usize].into());
    Event::Change(Change { id, offset: at * SECTOR, content, outcome })
}

/// Sector `n` of all states after so many flushes.
fn values(events: Vec<Event>, flushes: usize, n: u64) -> BTreeSet<u8> {
    let options = CrashOptions { per_flush: 50, ..CrashOptions::default() };
    CrashStates::new(&MemoryDevice::new(SIZE), events, options)
        .map(Result::unwrap)
        .filter(|s| s.cut.flushes == flushes)
        .map(|s| sector(&s.device, n))
        .collect()
}

#[test]
fn a_flush_covers_what_had_returned_when_it_began() {
    // 1 returns before the flush begins, 3 is requested before and returns after, 5 does never.
    let events = vec![
        change(1, 1, Outcome::Done(2)),
        change(3, 3, Outcome::Done(6)),
        change(5, 5, Outcome::UnderWay),
        Event::Flush { began: 4 },
        Event::Mark(1),
        Event::Flush { began: 7 },
        Event::Mark(2),
    ];
    let both = |byte| BTreeSet::from([0, byte]);
    assert_eq!(values(events.clone(), 1, 1), BTreeSet::from([1]));
    assert_eq!(values(events.clone(), 1, 3), both(3));
    assert_eq!(values(events.clone(), 2, 3), BTreeSet::from([3]));
    assert_eq!(values(events, 2, 5), both(5));
}

#[test]
fn a_durable_write_covers_only_itself() {
    // While 7 was written durably (from 3 on), 4 was written beside it.
    let events = vec![
        change(1, 1, Outcome::Done(2)),
        change(4, 4, Outcome::Done(5)),
        Event::Flush { began: 3 },
        change(7, 7, Outcome::Done(8)),
        Event::Durable { id: 7 },
        Event::Mark(1),
    ];
    assert_eq!(values(events.clone(), 2, 1), BTreeSet::from([1]));
    assert_eq!(values(events.clone(), 2, 7), BTreeSet::from([7]));
    assert_eq!(values(events, 2, 4), BTreeSet::from([0, 4]));
}
