// SPDX-License-Identifier: AGPL-3.0-or-later
//! The logic of exploration, minimizing and replay, with a subject that needs no machines.

mod explore;
mod fake;
mod minimize;
mod replay;
mod shards;
