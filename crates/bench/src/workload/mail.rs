//! What a mail server of old does to files, in the manner of PostMark: many small files that are made,
//! appended to, read and removed.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Family, Place, Work, Workload};
use crate::measure::Meter;

const DIRECTORIES: u64 = 10;

struct Mail;

fn path(place: &Place, number: u64) -> PathBuf {
    place.path(&format!("box{}/{number}", number % DIRECTORIES))
}

fn make(place: &Place, number: u64, rng: &mut StdRng, content: &[u8]) -> Result<()> {
    let len = rng.random_range(500..10_000);
    Ok(File::create_new(path(place, number))?.write_all(content.get(..len).unwrap_or(content))?)
}

impl Work for Mail {
    fn prepare(&self, place: &Place) -> Result<()> {
        (0..DIRECTORIES).try_for_each(|n| fs::create_dir(place.path(&format!("box{n}"))))?;
        let mut rng = StdRng::seed_from_u64(place.seed);
        (0..place.size(10_000, 2_000)).try_for_each(|n| make(place, n, &mut rng, &[b'm'; 10_000]))?;
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let mut rng = StdRng::seed_from_u64(!place.seed);
        let mut next = place.size(10_000, 2_000);
        let mut there: Vec<u64> = (0..next).collect();
        let content = [b'n'; 10_000];
        meter.start()?;
        for _ in 0..place.size(50_000, 10_000) {
            meter.operation(|| {
                if rng.random() {
                    let one = there.get(rng.random_range(0..there.len())).copied().unwrap_or(0);
                    if rng.random() {
                        fs::read(path(place, one))?;
                    } else {
                        let len = rng.random_range(500..2_000);
                        let mut file = File::options().append(true).open(path(place, one))?;
                        file.write_all(content.get(..len).unwrap_or(&content))?;
                    }
                }
                if rng.random() || there.len() < 100 {
                    make(place, next, &mut rng, &content)?;
                    there.push(next);
                    next += 1;
                } else {
                    let one = there.swap_remove(rng.random_range(0..there.len()));
                    fs::remove_file(path(place, one))?;
                }
                Ok(())
            })?;
        }
        place.sync()?;
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let about = "10,000 (quick: 2,000) files of 0.5 to 10 KB, 50,000 (quick: 10,000) times: perhaps read or append to \
                 one, and make or remove one; and sync";
    vec![Workload::new("mail", Family::Mail, about, Mail).operation("transaction")]
}
