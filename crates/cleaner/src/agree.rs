//! Holds an account against the independent count of [`silt_verify::holdings`]: for tests.
#![allow(clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::sync::Arc;

use silt_device::Device;
use silt_engine::{OpenOptions, Volume};
use silt_retention::{Ladder, Wish};
use silt_verify::holdings::{Kept, holdings};

use crate::account::{Account, account};
use crate::moments::Moments;
use crate::past::Past;
use crate::run::Whole;

/// Classes in which an account of a volume at rest differs from the independent count by more than `within` blocks; and
/// whether it adds up to the size of the device.
pub fn differences(account: &Account, moments: &Moments, device: &dyn Device, within: u64) -> Vec<String> {
    let kept = Kept {
        retention: &moments.kept,
        soon: &moments.soon,
        firm: &moments.firm,
        mounted: &moments.mounted,
    };
    let count = match holdings(device, kept) {
        Ok(count) => count,
        Err(e) => return vec![format!("no count: {e}")],
    };
    let a = account;
    let mut classes = vec![
        ("checkpoint".to_owned(), a.checkpoint, count.checkpoint),
        ("live".to_owned(), a.live, count.live),
        ("history".to_owned(), a.history, count.history),
        ("history soon".to_owned(), a.history_soon, count.history_soon),
        ("history shared".to_owned(), a.history_shared, count.history_shared),
        ("history loose".to_owned(), a.history_loose, count.history_loose),
        ("snapshots".to_owned(), a.snapshots, count.snapshots),
        ("mounted".to_owned(), a.mounted, count.mounted),
        ("reclaimable".to_owned(), a.reclaimable, count.reclaimable),
        ("metadata".to_owned(), a.metadata, count.metadata),
        ("log".to_owned(), a.log, count.log),
        ("clean".to_owned(), a.free + a.reserve, count.clean),
        ("bad".to_owned(), a.bad, count.bad),
        ("outside".to_owned(), a.outside, count.outside),
    ];
    let alone: Vec<(u64, u64)> = count.alone.into_iter().collect();
    if a.alone.iter().map(|s| s.0).ne(alone.iter().map(|s| s.0)) {
        return vec![format!("snapshots {:?}, {alone:?} are", a.alone)];
    }
    let each = a.alone.iter().zip(&alone);
    classes.extend(each.map(|(a, b)| (format!("snapshot {} alone", a.0), a.1, b.1)));
    let left_to = a.left_to.iter().zip(count.left_to.values());
    classes.extend(left_to.map(|(a, b)| (format!("left to snapshot {}", a.0), a.1, *b)));
    let mut wrong: Vec<String> = classes
        .into_iter()
        .filter(|(_, said, counted)| said.abs_diff(*counted) > within)
        .map(|(class, said, counted)| format!("{class}: {said} blocks, {counted} counted"))
        .collect();
    let size = device.len() / a.block_size.max(1);
    if a.sum() != size {
        wrong.push(format!("the classes add up to {} blocks, there are {size}", a.sum()));
    }
    wrong
}

/// Counts a volume that nobody has open, by a wish and its floor at `time`. The account, and in which classes the
/// independent count comes to something else. Panics where it cannot be counted.
pub fn compare(device: &Arc<dyn Device>, wish: &Wish, floor: &Wish, time: u64) -> (Account, Vec<String>) {
    let options = OpenOptions { read_only: true, now: time, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone(), &options).expect("a volume");
    let whole = Whole::new(&mut volume, time);
    let moments = Moments::read(&whole, &Ladder::new(wish, floor), time).expect("moments");
    let account = account(&whole, moments.clone(), |_| true).expect("a count").expect("a whole one");
    let mut wrong = differences(&account, &moments, &**device, 0);
    let past = Past::read(&whole, device, &moments, |_| true).expect("logs").expect("all of them");
    let held = account.history + account.snapshots + account.mounted;
    if past.sum() != held || past.cut != 0 {
        wrong.push(format!("files hold {} blocks of the past, the account says {held}", past.sum()));
    }
    (account, wrong)
}

/// The same; panics where they disagree.
pub fn check(device: &Arc<dyn Device>, wish: &Wish, floor: &Wish, time: u64) -> Account {
    let (account, wrong) = compare(device, wish, floor, time);
    assert!(wrong.is_empty(), "the account disagrees with the independent count: {wrong:#?}\n{account:#?}");
    account
}

/// What is wrong with the account of a volume at rest by several wishes.
pub fn at_rest(device: &Arc<dyn Device>, time: u64) -> Vec<String> {
    let wishes = ["nothing", "all for ever", "all for 10 minutes, one every 5 minutes for 3 hours"];
    let each = |words: &str| {
        let wish = words.parse().expect("a wish");
        let wrong = compare(device, &wish, &Wish::nothing(), time).1;
        wrong.into_iter().map(move |w| format!("keeping {wish}: {w}"))
    };
    wishes.into_iter().flat_map(each).collect()
}
