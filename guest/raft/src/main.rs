// SPDX-License-Identifier: Apache-2.0
//! A Raft node with planted bugs, one a VM.

fn main() {}
