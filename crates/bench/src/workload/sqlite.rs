//! SQLite, as programs use it: one small transaction after the other, each durable.

use anyhow::Result;
use rusqlite::{Connection, params};

use super::{Family, Place, Work, Workload};
use crate::disk::Kind;
use crate::measure::Meter;

struct Transactions {
    journal: &'static str,
}

impl Transactions {
    fn open(&self, place: &Place) -> Result<Connection> {
        let database = Connection::open(place.path("data.sqlite"))?;
        database.pragma_update(None, "journal_mode", self.journal)?;
        database.pragma_update(None, "synchronous", "full")?;
        Ok(database)
    }
}

impl Work for Transactions {
    fn prepare(&self, place: &Place) -> Result<()> {
        let database = self.open(place)?;
        database.execute_batch(
            "CREATE TABLE entries (id INTEGER PRIMARY KEY, key TEXT, value BLOB);
             CREATE INDEX keys ON entries (key);",
        )?;
        drop(database);
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let database = self.open(place)?;
        let mut insert = database.prepare("INSERT INTO entries (key, value) VALUES (?1, ?2)")?;
        meter.start()?;
        for n in 0..place.size(5_000, 500) {
            let key = format!("{:08x}", (n as u32).wrapping_mul(2_654_435_761));
            meter.operation(|| {
                insert.execute(params![key, [n as u8; 200]])?;
                Ok(())
            })?;
        }
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    [("sqlite-wal", "wal", "write-ahead log"), ("sqlite-rollback", "delete", "rollback journal")]
        .map(|(name, journal, word)| {
            let about = format!(
                "5,000 (quick: 500) SQLite transactions that insert a row into an indexed table; {word}, synchronous=full"
            );
            Workload::new(name, Family::Database, about, Transactions { journal })
                .operation("transaction")
                .on(&[Kind::Here, Kind::Flush2ms])
                .durable()
        })
        .into()
}
