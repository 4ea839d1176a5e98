// SPDX-License-Identifier: AGPL-3.0-or-later
//! Our CPU in lockstep with QEMU's TCG, through QEMU's GDB stub: what ring 3 on the host cannot show.

pub mod gdb;
pub mod lockstep;
pub mod machine;
pub mod programs;
pub mod start_up;
pub mod world;
