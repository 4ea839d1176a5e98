// SPDX-License-Identifier: AGPL-3.0-or-later
//! What verdicts and receipts conclude, from chains of documents that were not run.

mod chain;
mod receipts;
mod shards;
mod verdicts;
