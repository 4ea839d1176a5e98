// SPDX-License-Identifier: Apache-2.0
//! fjall in a folder on ext4. Every transaction is one write batch over two keyspaces with durability `SyncAll`.
//!
//! A transaction that empties the store does so with `Keyspace::clear`, which is no part of a batch, before it. A power cut between the
//! two is seen at the next start, which cannot be told from one that the store lost; so the transaction is first made known in a third
//! keyspace, and a start that finds one there finishes it. That is how an application makes two steps one.

use chaos_stores::{Contents, Store, Transaction};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

struct Fjall {
    database: Database,
    keys: Keyspace,
    log: Keyspace,
    intent: Keyspace,
}

const INTENT: &str = "clearing";

impl Store for Fjall {
    const NAME: &'static str = "chaos-fjall";
    type Error = fjall::Error;

    fn open(folder: &Path) -> Result<Self, fjall::Error> {
        let database = Database::builder(folder.join("fjall")).worker_threads(1).open()?;
        let keyspace = |name| database.keyspace(name, KeyspaceCreateOptions::default);
        let (keys, log, intent) = (keyspace("keys")?, keyspace("log")?, keyspace("intent")?);
        let mut store = Self { database, keys, log, intent };
        if let Some(found) = store.intent.get(INTENT)? {
            let transaction = Transaction::new(number(&found[..8]), number(&found[8..]));
            store.finish(&transaction)?;
        }
        Ok(store)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), fjall::Error> {
        if transaction.clears() {
            let intent = [transaction.number().to_be_bytes(), transaction.nonce().to_be_bytes()].concat();
            self.intent.insert(INTENT, intent)?;
            self.database.persist(PersistMode::SyncAll)?;
        }
        self.finish(transaction)
    }

    fn log(&self) -> Result<BTreeMap<u64, u64>, fjall::Error> {
        self.log.iter().map(|row| row.into_inner().map(|(key, value)| (number(&key), number(&value)))).collect()
    }

    fn contents(&self) -> Result<Contents, fjall::Error> {
        self.keys.iter().map(|row| row.into_inner().map(|(key, value)| (number(&key), value.to_vec()))).collect()
    }
}

impl Fjall {
    fn finish(&mut self, transaction: &Transaction) -> Result<(), fjall::Error> {
        if transaction.clears() {
            self.keys.clear()?;
        }
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncAll));
        for (key, value) in transaction.writes() {
            match value {
                Some(value) => batch.insert(&self.keys, key.to_be_bytes(), value),
                None => batch.remove(&self.keys, key.to_be_bytes()),
            }
        }
        batch.insert(&self.log, transaction.number().to_be_bytes(), transaction.nonce().to_be_bytes());
        if transaction.clears() {
            batch.remove(&self.intent, INTENT);
        }
        batch.commit()
    }
}

/// Eight bytes, the most significant first, so that keys sort by number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn main() -> ExitCode {
    chaos_stores::run::<Fjall>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_its_log_says_each_time_it_is_opened_again() {
        let folder = tempfile::tempdir().expect("a folder");
        for transactions in [20, 40, 60] {
            chaos_stores::work::<Fjall>(folder.path(), transactions).expect("no faults, no failures");
        }
    }
}
