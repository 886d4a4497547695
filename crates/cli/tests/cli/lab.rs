//! `silt lab`

use crate::common::Bench;

#[test]
fn torture_counts_what_it_did_and_does_the_same_again() {
    let b = Bench::new();
    let arguments = ["lab", "torture", "--seed", "7", "--workloads", "1", "--json"];
    let once = b.json(&arguments);
    assert_eq!(once["passed"], true, "{once}");
    assert_eq!(once["workloads"], 1);
    let states = once["states"].as_u64().unwrap();
    assert!(states > 5, "{once}");
    let kinds = ["flushed", "in_order", "reordered", "torn"];
    assert_eq!(kinds.iter().map(|k| once[k].as_u64().unwrap()).sum::<u64>(), states);
    assert!(once["across_requests"].as_u64().unwrap() <= once["reordered"].as_u64().unwrap());
    assert_eq!(b.json(&arguments), once, "a seed replays");
}

#[test]
fn torture_ends_when_it_shall_and_says_what_it_did() {
    let b = Bench::new();
    let said = b.ok(&["lab", "torture", "--states", "30", "--block-size", "1024"]);
    assert!(said.ends_with("nothing that was promised is lost\n"), "{said}");
    assert!(said.contains("different disks"), "{said}");
}
