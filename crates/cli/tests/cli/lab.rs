//! `silt lab`

use crate::common::{Bench, Run, SILT};

use std::process::Stdio;
use std::time::Duration;

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
fn torture_does_as_many_workloads_as_it_is_told() {
    let b = Bench::new();
    let json = b.json(&["lab", "torture", "--seed", "3", "--workloads", "5", "--json"]);
    assert_eq!(json["workloads"], 5, "{json}");
    let said = b.ok(&["lab", "torture", "--workloads", "1"]);
    assert!(said.starts_with("1 workload, "), "{said}");
}

#[test]
fn torture_says_what_it_did_until_ctrl_c() {
    let b = Bench::new();
    for json in [&[][..], &["--json"]] {
        let mut command = b.command(SILT);
        command.args(["lab", "torture", "--seconds", "600"]).args(json);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Whoever is not there yet has no handler either.
        let status = format!("/proc/{}/status", child.id());
        let catches = || {
            let status = std::fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
            u64::from_str_radix(&caught, 16).unwrap() & 2 != 0
        };
        while !catches() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let run = Run::of(&child.wait_with_output().unwrap());
        assert_eq!(run.code, 130, "{}{}", run.out, run.err);
        if json.is_empty() {
            assert!(run.out.starts_with("ended before it was done; "), "{}", run.out);
        } else {
            let said: serde_json::Value = serde_json::from_str(&run.out).unwrap();
            assert!(said["ended_early"] == true && said["passed"] == false, "{said}");
        }
    }
}

#[test]
fn torture_ends_when_it_shall_and_says_what_it_did() {
    let b = Bench::new();
    let said = b.ok(&["lab", "torture", "--states", "30", "--block-size", "1024"]);
    assert!(said.ends_with("nothing that was promised is lost\n"), "{said}");
    assert!(said.contains("different disks"), "{said}");
}
