//! How fast a tree is unpacked over and over, from mkfs to the steady state: by Silt and by the kernel's driver with its
//! cleaner, taking turns in one guest. A benchmark: it reports.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use silt_model::rng::Rng;

use crate::guest::{self, Options};
use crate::mounted::{mkfs, run};
use crate::rig::Rig;
use crate::scratch::Scratch;

/// Size of the volumes, and of a tree: two of them are there at a time, and a third while it is unpacked.
const VOLUME: &str = "400M";
const FILES: u64 = 2000;
/// Bytes of a file at most: small ones are as many as large ones are long.
const LARGEST: u64 = 128 << 10;

/// The cleaner of nilfs-utils, in haste: as it comes it would not keep up with this.
const CLEANERD: &str = "protection_period 0
min_clean_segments 30%
max_clean_segments 40%
clean_check_interval 1
selection_policy timestamp
nsegments_per_clean 8
mc_nsegments_per_clean 16
cleaning_interval 0.5
mc_cleaning_interval 0.1
retry_interval 60
min_reclaimable_blocks 1
mc_min_reclaimable_blocks 1
use_set_suinfo
use_mmap
log_priority info
";

/// A tree as an archive; its bytes.
fn material(dir: &Path) -> Result<u64> {
    let (tree, mut rng, mut bytes) = (dir.join("tree"), Rng::new(1), 0);
    for n in 0..FILES {
        let below = tree.join(format!("d{}", n / 50));
        std::fs::create_dir_all(&below)?;
        let len = LARGEST >> rng.below(10);
        let content: Vec<u8> = (0..len).map(|_| u8::try_from(rng.below(256)).unwrap_or(0)).collect();
        std::fs::write(below.join(format!("f{n}")), content)?;
        bytes += len;
    }
    run(Command::new("tar").arg("cf").arg(dir.join("tree.tar")).arg("-C").arg(&tree).arg("."))?;
    std::fs::remove_dir_all(&tree)?;
    Ok(bytes)
}

fn script(silt: &Path, rounds: u64) -> String {
    let silt = silt.display();
    format!(
        r#"mount -t tmpfs none /run; mkdir -p /run/a /run/b; export HOME=/run
        "{silt}" mount -o retain=nothing /dev/ubdb /run/b >/dev/null || exit 1
        mount -i -t nilfs2 /dev/ubda /run/a || exit 1
        cp "$OUT/cleanerd.conf" /run/c.conf; nilfs_cleanerd -c /run/c.conf /dev/ubda /run/a || exit 1
        r=1
        while [ $r -le {rounds} ]; do
            for f in a b; do
                begin=$(date +%s%N); full=0; d=/run/$f/r$r
                mkdir $d && tar xf "$OUT/tree.tar" -C $d 2>/dev/null || full=1
                [ $r -gt 2 ] && rm -rf /run/$f/r$((r-2))
                if [ $f = b ]; then "{silt}" sync /run/b >/dev/null; else sync -f /run/a; fi
                end=$(date +%s%N)
                n=kernel; [ $f = b ] && n=silt; echo "RATE $n $r $(( (end-begin)/1000000 )) $full"
            done
            r=$((r+1))
        done
        "{silt}" umount /run/b; pkill nilfs_cleanerd; sleep 1; umount /run/a"#
    )
}

/// File system, round, milliseconds, and whether there was no space.
fn parse(line: &str) -> Option<(bool, usize, u64, bool)> {
    let mut words = line.trim().strip_prefix("RATE ")?.split_whitespace();
    let silt = words.next()? == "silt";
    let round = words.next()?.parse().ok()?;
    Some((silt, round, words.next()?.parse().ok()?, words.next()? == "1"))
}

/// Measures, and prints a table.
pub fn first_run(rig: &Rig, silt: &Path, rounds: u64) -> Result<()> {
    let scratch = Scratch::new("first-run")?;
    let bytes = material(scratch.path())?;
    std::fs::write(scratch.join("cleanerd.conf"), CLEANERD)?;
    let images = ["kernel.img", "silt.img"].map(|name| scratch.join(name));
    for image in &images {
        mkfs(silt, image, VOLUME, &["-B", "512"])?;
    }
    let options = Options { timeout: Duration::from_secs(60 + 20 * rounds), ..Options::default() };
    let (log, code) = guest::shell(rig, &images, &script(silt, rounds), scratch.path(), &options)?;
    let measured: Vec<_> = log.lines().iter().filter_map(|line| parse(line)).collect();
    if code != 0 || measured.len() as u64 != 2 * rounds {
        bail!("the guest ended with {code} after {} turns", measured.len());
    }
    let mib = bytes as f64 / f64::from(1 << 20);
    println!("{FILES} files of {mib:.1} MiB unpacked and synced, MiB/s (- where there was no space):");
    for silt in [false, true] {
        let mut line = format!("{:8}", if silt { "silt" } else { "kernel" });
        for (_, _, millis, full) in measured.iter().filter(|m| m.0 == silt) {
            let rate = mib * 1000.0 / (*millis).max(1) as f64;
            if *full { line.push_str("     -") } else { write!(line, " {rate:5.1}")? }
        }
        println!("{line}");
    }
    let means = |silt| -> Result<[f64; 2]> {
        let all: Vec<u64> = measured.iter().filter(|m| m.0 == silt).map(|m| m.2).collect();
        let third = all.len().div_ceil(3);
        let mean = |part: &[u64]| mib * 1000.0 * part.len() as f64 / part.iter().sum::<u64>().max(1) as f64;
        Ok([
            mean(all.get(..third).context("no rounds")?),
            mean(all.get(all.len() - third..).context("no rounds")?),
        ])
    };
    for silt in [false, true] {
        let [first, last] = means(silt)?;
        let name = if silt { "silt" } else { "kernel" };
        println!("{name}: first third {first:.1} MiB/s, last third {last:.1} MiB/s");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lines_of_the_guest() {
        assert_eq!(parse("RATE silt 12 345 0"), Some((true, 12, 345, false)));
        assert_eq!(parse("RATE kernel 1 9 1"), Some((false, 1, 9, true)));
        assert_eq!(parse("RATE kernel 1"), None);
        assert_eq!(parse("[    0.9] rate"), None);
    }
}
