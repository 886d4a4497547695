//! Those who crowd a volume: each writes files of its own, and makes space where there is none.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use silt_model::rng::{Rng, mix};

use super::PATIENCE;
use super::filling::{Filling, Pattern, unseeded};

/// Writes of a kind before it may be another one.
const SPELL: u64 = 200;

/// What the writers and who leads them tell each other.
pub(super) struct Shared {
    pub begun: Instant,
    /// The end has come, by a kill or not: errors count no more.
    pub over: AtomicBool,
    /// Space is held back by something that goes again.
    pub held: AtomicBool,
    /// Raised when all shall remove half of what they have.
    pub ease: AtomicU64,
    pub eased: AtomicU64,
    /// Milliseconds after the beginning at which somebody wrote something last.
    pub progress: AtomicU64,
    pub segment: u64,
}

impl Shared {
    /// Whether the end has come.
    pub fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Milliseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn progress(&self) {
        self.progress.store(self.now(), Ordering::SeqCst);
    }

    /// Sleeps in short pieces; whether it was not the end meanwhile.
    pub fn pause(&self, millis: u64) -> bool {
        for _ in 0..millis / 10 {
            if self.over() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        !self.over()
    }
}

/// One who writes, and removes something when there is no space.
#[derive(Deserialize, Serialize)]
pub(super) struct Writer {
    pub filling: Filling,
    #[serde(skip, default = "unseeded")]
    rng: Rng,
    pattern: Pattern,
    #[serde(skip)]
    pub eased: u64,
    /// How often there was no space.
    pub full: u64,
    /// The longest wait for space after something was removed.
    pub longest: Duration,
}

impl Writer {
    /// With files of its own below `dir`.
    pub fn new(dir: &Path, seed: u64) -> Self {
        Writer {
            filling: Filling::new(dir, seed),
            rng: Rng::new(seed),
            pattern: Pattern::Mixed,
            eased: 0,
            full: 0,
            longest: Duration::ZERO,
        }
    }

    /// Goes on after an interruption, with other choices than before.
    pub fn go_on(&mut self, seed: u64) {
        self.filling.go_on(mix(seed));
        self.rng = Rng::new(seed);
    }

    /// Writes until the end.
    pub fn work(&mut self, shared: &Shared) -> Result<()> {
        while !shared.over() {
            if let Err(e) = self.step(shared)
                && !shared.over()
            {
                // The others are not to go on for long.
                shared.over.store(true, Ordering::SeqCst);
                return Err(e)
                    .with_context(|| format!("{:?}, after {:?}", self.pattern, shared.begun.elapsed()));
            }
        }
        Ok(())
    }

    fn step(&mut self, shared: &Shared) -> Result<()> {
        let ease = shared.ease.load(Ordering::SeqCst);
        if self.eased != ease {
            self.eased = ease;
            self.filling.remove(self.filling.bytes() / 2)?;
            shared.eased.fetch_add(1, Ordering::SeqCst);
            // What is free stays so until it was used.
            shared.pause(300);
        }
        match self.rng.below(SPELL) {
            0 => {
                self.pattern = Pattern::ALL[usize::try_from(self.rng.below(6)).unwrap_or(0)];
                self.filling.begin();
            }
            1 => self.filling.compare()?.map_err(|e| anyhow!(e))?,
            2..6 => self.filling.sync()?,
            _ if self.filling.step(self.pattern)? => shared.progress(),
            _ => {
                self.full += 1;
                self.make_space(shared)?;
            }
        }
        Ok(())
    }

    /// Removes some segments' worth, and sees that somebody can write then.
    fn make_space(&mut self, shared: &Shared) -> Result<()> {
        let enough = (1 + self.rng.below(4)) * shared.segment;
        match self.rng.below(8) {
            0 if self.filling.bytes() > enough => self.filling.truncate_all()?,
            _ if self.filling.bytes() > 2 * enough => {
                self.filling.remove(enough)?;
            }
            _ => self.filling.remove_all()?,
        }
        let mut since = shared.now();
        while !shared.over() {
            if self.filling.one_more()? {
                shared.progress();
                break;
            }
            if shared.held.load(Ordering::SeqCst) {
                since = shared.now();
            }
            since = since.max(shared.progress.load(Ordering::SeqCst));
            let waited = Duration::from_millis(shared.now().saturating_sub(since));
            self.longest = self.longest.max(waited);
            if waited > PATIENCE {
                bail!("wedged: nobody could make a small file for {waited:?} after something was removed");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
