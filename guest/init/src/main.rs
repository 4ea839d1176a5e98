// SPDX-License-Identifier: Apache-2.0
//! The first process of a guest: mounts, network, restart point, then the workload.

fn main() {}
