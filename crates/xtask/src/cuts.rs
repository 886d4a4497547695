//! Power cuts: what the real kernel says of disks that cuts leave, and whether the campaign sees planted faults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use silt_device::Order;
use silt_lab::campaign::{Campaign, Plan, Sample};
use silt_lab::oracle::{self, Look};
use silt_model::manifest::{Columns, diff};

use crate::guest::Options;
use crate::mounted::judge;
use crate::rig::Rig;
use crate::scratch::{self, Scratch};
use crate::turn::{KernelTurn, Trees, kernel_turns};

/// Disks that the kernel looks at where nothing else is said.
pub const SAMPLE: usize = 60;

/// Has the kernel mount `count` disks as cuts leave them: it must see the tree and the snapshots that Silt sees, and
/// what it leaves must be sound and the same for Silt.
///
/// Left out are mounts with `nobarrier`: the driver takes a super root behind a torn log for whole (the format, 4.2),
/// and only without flushes is there ever one.
pub fn sample(rig: &Rig, count: usize, seed: u64, guests: usize) -> Result<()> {
    let campaign = Campaign::new(Plan { seed, ..Plan::default() }).map_err(|e| anyhow!("{e}"))?;
    let samples = campaign.sample(count).map_err(|e| anyhow!("{e}"))?;
    let scratch = Scratch::new("cuts")?;
    let turns: Vec<KernelTurn> = samples
        .iter()
        .enumerate()
        .map(|(n, s)| turn(s, &scratch.join(&format!("cut{n}.img"))))
        .collect::<Result<_>>()?;
    let reports = kernel_turns(rig, &turns, guests, &Options::default())?;
    let mut wrong = 0;
    let mut recovered = 0;
    for ((sample, report), turn) in samples.iter().zip(&reports).zip(&turns) {
        recovered += usize::from(report.salvaged > 0);
        let mut complaints = report.complaints.clone();
        if let Err(e) = judge_after(sample, &turn.image) {
            complaints.push(format!("after the kernel: {e:#}"));
        }
        match &report.trees {
            Some(trees) => complaints.extend(diff(&sample.seen.live, &trees.live, Columns::ALL)),
            None => complaints.push("the kernel read nothing".to_owned()),
        }
        if !complaints.is_empty() {
            wrong += 1;
            println!("{}:", sample.what);
            complaints.iter().for_each(|c| println!("  {c}"));
        }
    }
    let torn = samples.iter().filter(|s| s.order != Order::Changes).count();
    let past: usize = samples.iter().map(|s| s.seen.snapshots.len()).sum();
    println!(
        "{} disks after a power cut, {torn} of them torn or out of order, {past} snapshots on them; the kernel put \
         synced data in place on {recovered}; it disagrees about {wrong}",
        samples.len()
    );
    if reports.len() != samples.len() {
        bail!("{} disks were looked at", reports.len());
    }
    if wrong == 0 { Ok(()) } else { bail!("the kernel disagrees about {wrong} disks") }
}

/// What the kernel left must be sound. It does not put right what a cut change of settings left, and may not hide it from
/// the next mount by Silt, which does.
fn judge_after(sample: &Sample, image: &Path) -> Result<()> {
    if !sample.settings {
        return judge(image);
    }
    let device =
        silt_device::open(image, silt_device::Access::ReadWrite, &silt_device::OpenOptions::default())?;
    let how = Look { before: false, ..oracle::ALL };
    oracle::look(Arc::new(device), how).map(|_| ()).map_err(|e| anyhow!("{e}"))
}

fn turn(sample: &Sample, image: &Path) -> Result<KernelTurn> {
    let device = silt_device::create_image(image, silt_device::Device::len(&sample.device), true)?;
    let mut failed = None;
    sample.device.for_each_chunk(|at, bytes| {
        if let Err(e) = silt_device::Device::write_at(&device, at, &[bytes]) {
            failed.get_or_insert(e);
        }
    });
    if let Some(e) = failed {
        return Err(e.into());
    }
    let snapshots: BTreeMap<u32, u64> = (0..).zip(sample.seen.snapshots.iter().copied()).collect();
    let trees = snapshots.iter().map(|(id, cno)| {
        let tree = sample.seen.past.get(cno).cloned().context("a snapshot was not read")?;
        Ok((*id, tree))
    });
    let trees = Trees { live: sample.seen.live.clone(), snapshots: trees.collect::<Result<_>>()? };
    Ok(KernelTurn {
        before: vec![(trees, Columns::ALL)],
        snapshots_made: u32::try_from(snapshots.len()).unwrap_or(0),
        snapshots,
        probes: sample.deep.clone(),
        // The first mount recovers.
        read_only: false,
        ..KernelTurn::look(image, usize::try_from(sample.block_size)?)
    })
}

/// One fault: places where the source is wrong, as (file, what is right, what is put there). Every right one occurs
/// exactly once in its file.
struct Planted {
    name: &'static str,
    places: &'static [(&'static str, &'static str, &'static str)],
}

const WRITER: &str = "daemon/src/writer.rs";
const OUTPUT: &str = "daemon/src/writer/output.rs";
const CLAIM: &str = "engine/src/claim.rs";
const SUPERS: &str = "engine/src/supers.rs";
const SEARCH: &str = "engine/src/search.rs";
const RECOVER: &str = "engine/src/recover.rs";
const LOG: &str = "engine/src/log.rs";
const REDO: &str = "engine/src/redo.rs";

const FLUSH: &str = "while self.unflushed && self.core.options.barrier {";
const DURABLY: &str = "match device.write_durably(self.offset, &self.bytes[..]) {";
const NOT_DURABLY: &str =
    "match device.write_at(self.offset, &[&self.bytes[..]]).and_then(|()| device.flush()) {";

const PLANTED: &[Planted] = &[
    Planted {
        name: "no flush goes before an answer",
        places: &[(OUTPUT, FLUSH, "while self.unflushed && self.core.options.barrier && self.suspect {")],
    },
    Planted {
        name: "the flush comes too late: with the next log",
        places: &[(OUTPUT, FLUSH, "while self.unflushed && self.core.options.barrier && next.is_some() {")],
    },
    Planted {
        name: "no flush goes before the last log of a checkpoint that spans segments",
        places: &[(
            LOG,
            "log.commits && self.oldest.is_some_and(|s| s != log.segment)",
            "log.commits && self.oldest.is_some_and(|s| s != log.segment) && log.is_empty()",
        )],
    },
    Planted {
        name: "a log on its way is not noted for the order of flushes",
        places: &[(
            OUTPUT,
            "        self.order.written(&log);\n",
            "        if log.commits || log.len() < self.large {\n            self.order.written(&log);\n        }\n",
        )],
    },
    Planted {
        name: "super blocks are not ordered behind their log",
        places: &[(SUPERS, DURABLY, NOT_DURABLY)],
    },
    Planted {
        name: "a super block is written before its log is flushed",
        places: &[
            (SUPERS, DURABLY, NOT_DURABLY),
            (
                WRITER,
                "Ok(Step::Waiting) => self.flush(None).map(|()| self.tell()),",
                "Ok(Step::Waiting) => self.land().map(|()| self.tell()),",
            ),
            (
                WRITER,
                "        self.let_paced_run();\n        self.finish()\n",
                "        self.let_paced_run();\n        self.finish()?;\n        self.update_super_block();\n        Ok(())\n",
            ),
        ],
    },
    Planted {
        name: "a super block names a later checkpoint than its log's",
        places: &[(
            SUPERS,
            "block.last_cno = last.cno.into();",
            "block.last_cno = last.cno.saturating_add(1).into();",
        )],
    },
    Planted {
        name: "the second super block is never written with the first",
        places: &[(
            SUPERS,
            "std::iter::once(self.emit(self.first.0, &self.first.1)).chain(second).collect()",
            "std::iter::once(self.emit(self.first.0, &self.first.1)).chain(second.filter(|_| false)).collect()",
        )],
    },
    Planted {
        name: "fdatasync is answered and nothing is written",
        places: &[(
            WRITER,
            "Want::Data(ino) if !fs.volume().is_inode_dirty(ino) => {}",
            "Want::Data(_) => {}",
        )],
    },
    Planted {
        name: "fdatasync writes data alone where the size changed",
        places: &[(
            "engine/src/files.rs",
            "plain && i.on_disk && !i.needs_checkpoint && i.current.cuts.is_empty()",
            "plain && i.on_disk && i.current.cuts.is_empty()",
        )],
    },
    Planted {
        name: "fdatasync writes data alone of a file without a name",
        places: &[(
            "engine/src/files.rs",
            "i.attr.is_regular() && i.attr.links > 0;",
            "i.attr.is_regular();",
        )],
    },
    Planted {
        name: "fdatasync writes data alone where nothing is flushed",
        places: &[(
            WRITER,
            "self.core.options.barrier && !self.core.options.order_strict;",
            "!self.core.options.order_strict;",
        )],
    },
    Planted {
        name: "segments of a recovered tail are handed out at once",
        places: &[(
            RECOVER,
            "} else if e.is_clean() || is_next {",
            "} else if e.is_clean() && e.is_error() {",
        )],
    },
    Planted {
        name: "recovery goes on with the sequence numbers of the tail",
        places: &[(
            RECOVER,
            "let jump = SEQ_JUMP + u64::from(self.next_generation()) % SEQ_JUMP;",
            "let jump = 1 + u64::from(self.next_generation()) % SEQ_JUMP % 1;",
        )],
    },
    Planted {
        name: "the super blocks do not point at what was recovered",
        places: &[(
            CLAIM,
            "            if discontinued {\n                supers::set_cursor(b, last, free);\n            }\n",
            "            let _ = (discontinued, last, free);\n",
        )],
    },
    Planted {
        name: "a mounted volume is marked as cleanly unmounted",
        places: &[(CLAIM, "b.state = (b.state.get() & !STATE_VALID).into();", "let _ = &b.state;")],
    },
    Planted {
        name: "the checksum of a log is not looked at",
        places: &[(
            SEARCH,
            "(crc.finish() == header.datasum.get()).then_some(header)",
            "(crc.finish() != 1).then_some(header)",
        )],
    },
    Planted {
        name: "a super root behind a torn log is accepted",
        places: &[(
            SEARCH,
            "counted && (begins || !self.missed) && !header.has(summary::SYNDT)",
            "begins || self.missed",
        )],
    },
    Planted {
        name: "logs that were moved are answered before the super blocks point at them",
        places: &[(REDO, "        if self.moved {", "        if self.moved && self.failed.is_some() {")],
    },
    Planted {
        name: "logs that were moved are answered though no super block could be pointed at them",
        places: &[(
            REDO,
            "            self.write_supers_or_one(&writes)?;",
            "            let _ = self.write_supers_or_one(&writes);",
        )],
    },
    Planted {
        name: "one super block alone points at logs that were moved",
        places: &[(
            REDO,
            "            self.write_supers_or_one(&writes)?;",
            "            self.write_supers_or_one(writes.get(..1).unwrap_or_default())?;",
        )],
    },
    Planted {
        name: "with nobarrier freed segments are written again before that is on the medium",
        places: &[(
            "daemon/src/cleaning.rs",
            "if !self.core.options.barrier {",
            "if !self.core.options.barrier && self.core.device.is_empty() {",
        )],
    },
    Planted {
        name: "segments that were freed are discarded before that is durable",
        places: &[(
            "engine/src/discard.rs",
            "let held = self.store.held.from(at);",
            "let held = self.store.held.from(at).filter(|_| false);",
        )],
    },
    Planted {
        name: "with nobarrier a super block is pointed at what a failed flush lost",
        places: &[(
            WRITER,
            "        if !self.core.options.barrier && self.look_for_lost_logs().is_err() {",
            "        if !self.core.options.barrier && self.large == 1 && self.look_for_lost_logs().is_err() {",
        )],
    },
    Planted {
        name: "what a failed flush lost is not written again",
        places: &[(
            OUTPUT,
            "            if self.suspect {",
            "            if self.suspect && self.logs.len() > 9999 {",
        )],
    },
    Planted {
        name: "mkfs leaves old super blocks until it has written its log",
        places: &[(
            "engine/src/mkfs.rs",
            "            device.write_at(at, &[&[0; sb::SIZE]])?;",
            "            let _ = at;",
        )],
    },
    Planted {
        name: "snapshots do not keep their blocks",
        places: &[(
            "engine/src/live.rs",
            "self.moments.get(at).is_some_and(|s| *s < range.end)",
            "self.moments.get(at).is_some_and(|s| *s < range.start)",
        )],
    },
    Planted {
        name: "some blocks of a segment are not moved",
        places: &[(
            "engine/src/construct.rs",
            "            self.add(k, item)?;\n            left -= 1;",
            "            if item.ino.0 != 13 {\n                self.add(k, item)?;\n            }\n            left -= 1;",
        )],
    },
    Planted {
        name: "a block that is moved begins anew",
        places: &[
            (
                "engine/src/fill.rs",
                "let start = (!item.moved).then_some(self.cno);",
                "let start = Some(self.cno);",
            ),
            (
                "engine/src/compose.rs",
                "self.dat.assign(&self.store, vblock, at, (!item.moved).then_some(cno))?;",
                "self.dat.assign(&self.store, vblock, at, Some(cno))?;",
            ),
        ],
    },
];

/// Plants each fault in turn in a copy of the project and runs the campaign there; one that it does not see is an
/// error.
pub fn faults(root: &Path, from: usize) -> Result<()> {
    let scratch = Scratch::new("cut-faults")?;
    let project = scratch.join("project");
    std::fs::create_dir(&project)?;
    for part in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "crates"] {
        let status = Command::new("cp").arg("-r").args([root.join(part), project.join(part)]).status()?;
        if !status.success() {
            bail!("copying {part} failed");
        }
    }
    // Elsewhere where that is said: a second run is quicker then.
    let target = std::env::var_os("SILT_FAULTS_TARGET").map_or_else(|| project.join("target"), PathBuf::from);
    if let Some(complaint) = campaign(&project, &target).context("without any fault")? {
        bail!("there are complaints without any fault: {complaint}");
    }
    let mut missed = 0;
    for planted in PLANTED.iter().skip(from) {
        let mut texts = BTreeMap::new();
        for (file, right, wrong) in planted.places {
            let path = project.join("crates").join(file);
            let now = std::fs::read_to_string(&path)?;
            if now.matches(right).count() != 1 {
                bail!("{file}: the place of \"{}\" has moved; mend the list", planted.name);
            }
            std::fs::write(&path, now.replace(right, wrong))?;
            texts.entry(path).or_insert(now);
        }
        let seen = campaign(&project, &target).with_context(|| planted.name.to_owned());
        for (path, text) in texts {
            std::fs::write(path, text)?;
        }
        match seen? {
            Some(complaint) => println!("seen:   {}\n        {complaint}", planted.name),
            None => {
                println!("MISSED: {}", planted.name);
                missed += 1;
            }
        }
    }
    if missed == 0 { Ok(()) } else { bail!("{missed} faults were not seen") }
}

/// The first complaint of the campaign of every day in this project.
fn campaign(project: &Path, target: &Path) -> Result<Option<String>> {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command
            .args(arguments)
            .current_dir(project)
            .env("CARGO_TARGET_DIR", target)
            .env("SILT_TORTURE_SHRINK", "0")
            .env("RUST_BACKTRACE", "0")
            // Soon built is worth more than soon run.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "1")
            .env("RUSTFLAGS", "-Awarnings");
        scratch::output(&mut command)
    };
    let test =
        ["test", "--quiet", "--release", "--package", "silt-lab", "--test", "torture", "--test", "failing"];
    let built = cargo(&[&test[..], &["--no-run"]].concat())?;
    if !built.status.success() {
        bail!("it does not build:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    let output = cargo(&[&test[..], &["--no-fail-fast", "--", "--nocapture"]].concat())?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        |start: &str| text.lines().map(str::trim).find(|l| l.starts_with(start)).unwrap_or("?").to_owned();
    let told = format!("{} {} {}", line("after "), line("workload "), line("found: "));
    Ok(Some(told.chars().take(400).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_place() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for planted in PLANTED {
            for (file, right, wrong) in planted.places {
                let text = std::fs::read_to_string(crates.join(file)).unwrap();
                assert_eq!(text.matches(right).count(), 1, "{file}: {}", planted.name);
                assert_ne!(right, wrong);
            }
        }
    }
}
