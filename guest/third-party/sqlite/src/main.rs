// SPDX-License-Identifier: Apache-2.0
//! SQLite in a file on ext4, in WAL mode with `synchronous=FULL`, which its documentation says makes commits durable.

use chaos_stores::{Contents, Store, Transaction};
use rusqlite::{Connection, TransactionBehavior, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

struct Sqlite {
    connection: Connection,
}

impl Store for Sqlite {
    const NAME: &'static str = "chaos-sqlite";
    type Error = rusqlite::Error;

    fn open(folder: &Path) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open(folder.join("store.sqlite"))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        // Often enough that checkpoints are cut off too.
        connection.pragma_update(None, "wal_autocheckpoint", 32)?;
        connection.execute_batch(
            "create table if not exists keys (key integer primary key, value blob not null);
             create table if not exists log (number integer primary key, nonce integer not null);",
        )?;
        Ok(Self { connection })
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), rusqlite::Error> {
        let write = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if transaction.clears() {
            write.execute("delete from keys", [])?;
        }
        for (key, value) in transaction.writes() {
            match value {
                Some(value) => {
                    write.execute("insert or replace into keys values (?1, ?2)", params![key as i64, value])?
                }
                None => write.execute("delete from keys where key = ?1", [key as i64])?,
            };
        }
        let row = params![transaction.number() as i64, transaction.nonce() as i64];
        write.execute("insert into log values (?1, ?2)", row)?;
        write.commit()
    }

    fn log(&self) -> Result<BTreeMap<u64, u64>, rusqlite::Error> {
        let mut rows = self.connection.prepare("select number, nonce from log")?;
        rows.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)))?.collect()
    }

    fn contents(&self) -> Result<Contents, rusqlite::Error> {
        let mut rows = self.connection.prepare("select key, value from keys")?;
        rows.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?)))?.collect()
    }
}

fn main() -> ExitCode {
    chaos_stores::run::<Sqlite>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_its_log_says_each_time_it_is_opened_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for transactions in [20, 40, 60] {
            chaos_stores::work::<Sqlite>(folder.path(), transactions).expect("no faults, no failures");
        }
    }
}
