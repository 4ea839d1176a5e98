// SPDX-License-Identifier: Apache-2.0
//! redb in a file on ext4. Every transaction is a write transaction with durability `Immediate`, the default.
//!
//! `redb_bug=missing_flush` plants a bug: the storage backend does not pass on redb's requests to sync the file, so that a commit
//! returns before it is durable.

use chaos_stores::{Contents, Store, Transaction};
use chaoscontrol_sdk::guest;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::ExitCode;

const KEYS: TableDefinition<u64, &[u8]> = TableDefinition::new("keys");
const LOG: TableDefinition<u64, u64> = TableDefinition::new("log");

struct Redb {
    database: Database,
}

impl Store for Redb {
    const NAME: &'static str = "chaos-redb";
    type Error = redb::Error;

    fn open(folder: &Path) -> Result<Self, redb::Error> {
        let path = folder.join("store.redb");
        let database = match guest::parameter("redb_bug").as_deref() {
            Some("missing_flush") => {
                let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path)?;
                Database::builder().create_with_backend(NoFlush(FileBackend::new(file)?))?
            }
            _ => Database::create(path)?,
        };
        Ok(Self { database })
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        {
            let mut keys = write.open_table(KEYS)?;
            if transaction.clears() {
                keys.retain(|_, _| false)?;
            }
            for (key, value) in transaction.writes() {
                match value {
                    Some(value) => keys.insert(key, value.as_slice())?,
                    None => keys.remove(key)?,
                };
            }
            write.open_table(LOG)?.insert(transaction.number(), transaction.nonce())?;
        }
        write.commit()?;
        Ok(())
    }

    fn log(&self) -> Result<BTreeMap<u64, u64>, redb::Error> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(LOG) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
            table => table?,
        };
        table
            .iter()?
            .map(|row| row.map(|(number, nonce)| (number.value(), nonce.value())).map_err(Into::into))
            .collect()
    }

    fn contents(&self) -> Result<Contents, redb::Error> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(KEYS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Contents::new()),
            table => table?,
        };
        table
            .iter()?
            .map(|row| row.map(|(key, value)| (key.value(), value.value().to_vec())).map_err(Into::into))
            .collect()
    }
}

/// A file whose data is never synced.
#[derive(Debug)]
struct NoFlush(FileBackend);

impl StorageBackend for NoFlush {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }
}

fn main() -> ExitCode {
    chaos_stores::run::<Redb>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_its_log_says_each_time_it_is_opened_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for transactions in [20, 40, 60] {
            chaos_stores::work::<Redb>(folder.path(), transactions).expect("no faults, no failures");
        }
    }
}
